// SPDX-License-Identifier: Apache-2.0
//
// Any bytes inflated, within a limit; and deflated, which inflates to what it was.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "fuzz_input.h"
#include "net/compression.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  FuzzInput input(data, size);
  const std::uint8_t choice = input.byte();
  const Encoding encoding = (choice & 1) != 0 ? Encoding::kGzip : Encoding::kDeflate;
  const std::size_t bytes_max = 16 * std::size_t{input.number()};
  const std::string_view bytes = input.rest();
  const auto message = std::as_bytes(std::span(bytes));

  std::string out;
  const Status status = inflate(encoding, message, bytes_max, &out);
  if (status.ok()) require(out.size() <= bytes_max, "the limit holds");
  require(status.ok() || status.code() == Code::kInternal || status.code() == Code::kResourceExhausted,
          "there are two ways to fail");

  std::string deflated, inflated;
  require(deflate(encoding, message, &deflated).ok(), "everything can be deflated");
  require(inflate(encoding, std::as_bytes(std::span(deflated)), bytes.size(), &inflated).ok(), "and inflated again");
  require(inflated == bytes, "to what it was");
  if (!bytes.empty())
    require(inflate(encoding, std::as_bytes(std::span(deflated)), bytes.size() - 1, &inflated).code() ==
                Code::kResourceExhausted,
            "but not to more than is allowed");
  return 0;
}
