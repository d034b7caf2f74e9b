// SPDX-License-Identifier: Apache-2.0
//
// FuzzInput: bytes of a fuzzer as the choices of a test; FuzzScript: the bytes that make given choices, for seeds.
//
// Thread safety: one thread at a time.
// Ownership: an input is read where it lies.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace headrace {

// What must hold whatever the input is: the fuzzer keeps an input that ends the process.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }

  // Numbers are 0 once there are no bytes left.
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return value;
  }
  std::uint16_t number() {
    const unsigned high = byte();
    return static_cast<std::uint16_t>(high << 8 | byte());
  }

  // As many bytes as the next number says, if there are so many.
  std::string_view text() {
    const std::size_t size = number();
    return take(size);
  }
  std::string_view rest() { return take(left_.size()); }

 private:
  std::string_view take(std::size_t size) {
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view left_;
};

class FuzzScript {
 public:
  FuzzScript& byte(std::uint8_t value) {
    bytes_ += static_cast<char>(value);
    return *this;
  }
  FuzzScript& number(std::uint16_t value) {
    return byte(static_cast<std::uint8_t>(value >> 8)).byte(static_cast<std::uint8_t>(value));
  }
  FuzzScript& text(std::string_view value) {
    number(static_cast<std::uint16_t>(value.size()));
    return rest(value);
  }
  FuzzScript& rest(std::string_view value) {
    bytes_ += value;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace headrace
