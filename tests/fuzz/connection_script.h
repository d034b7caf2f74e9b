// SPDX-License-Identifier: Apache-2.0
//
// What fuzz_connection does with a connection, as its inputs spell it: a byte of set-up, then steps, each a byte of
// Step and what stands beside it.
//
// Thread safety: constants.

#pragma once

#include <cstdint>

namespace headrace {

// Bits of the set-up.
inline constexpr std::uint8_t kWithoutPreface = 1;
inline constexpr std::uint8_t kSmallSendBuffer = 2;  // of the server's socket
inline constexpr std::uint8_t kSmallBudget = 4;
inline constexpr std::uint8_t kFewStreams = 8;
inline constexpr std::uint8_t kSmallHeaders = 16;
inline constexpr std::uint8_t kSmallMessages = 32;
inline constexpr std::uint8_t kSetups = 64;

// Streams are told by a byte: the how manieth that was opened, modulo as many as there are and one that is not open.
enum class Step : std::uint8_t {
  kOpen,      // byte: path; byte: kHead... bits
  kOpenWith,  // as kOpen; text: name, text: value of one header more
  kOpenRaw,   // byte: flags; text: the header block
  kPredict,   // stream; byte: kMessage... bits; number: how many numbers, less than 64 without kManyNumbers
  kMessage,   // stream; byte: kMessage... bits; text
  kData,      // stream; byte: flags; text
  kFrame,     // stream; byte: type; byte: flags; text
  kReset,     // stream
  kWindow,    // stream; number: by which times 64 it grows
  kSetting,   // byte: which; number: its value, times 64
  kRaw,       // text
  kRead,      // the client reads what came for it
  kRun,       // the lane runs a batch
  kFailRuns,  // byte: whether runs fail from now on
  kHandle,    // byte: whether the handlers answer with errors
  kHealth,    // byte: what is served from now on
  kPhase,     // the server goes on to the next phase of its stopping
  kChunks,    // number: the most bytes that the server gets at a time from now on; 0: no limit
  kSteps,
};

inline constexpr std::uint8_t kHeadEnds = 1;  // END_STREAM
inline constexpr std::uint8_t kHeadGzip = 2;
inline constexpr std::uint8_t kHeadDeflate = 4;
inline constexpr std::uint8_t kHeadAcceptsGzip = 8;
inline constexpr std::uint8_t kHeadTimeout = 16;
inline constexpr std::uint8_t kHeadNotGrpc = 32;

inline constexpr std::uint16_t kManyNumbers = 0x8000;

inline constexpr std::uint8_t kMessageEnds = 1;  // END_STREAM
inline constexpr std::uint8_t kMessageFlagged = 2;
inline constexpr std::uint8_t kMessageGzip = 4;  // and deflate with kMessageDeflate
inline constexpr std::uint8_t kMessageDeflate = 8;
inline constexpr std::uint8_t kMessageTwice = 16;

}  // namespace headrace
