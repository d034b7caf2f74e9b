// SPDX-License-Identifier: Apache-2.0
//
// What the echoes have in common: their options and what they print.
//
// An echo answers /tensorflow.serving.PredictionService/Predict with the message that it got.  It prints
// `listening on PORT` when it serves, and `served N requests` when SIGTERM ends it.
//
//   --reply_bytes=N   it answers with N zeros instead
//   --one_piece       gRPC's echoes: first it copies the message into one piece, as the parsing of protobuf does with
//                     the bytes of a tensor; the others have it so in any case

#pragma once

#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace echo {

inline constexpr char kPath[] = "/tensorflow.serving.PredictionService/Predict";

struct Options {
  std::optional<std::size_t> reply_bytes;  // unset: what came
  bool one_piece = false;
};

// Ends the process where it does not understand them.
inline Options parse(int argc, char** argv) {
  constexpr std::string_view kReplyBytes = "--reply_bytes=";
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--one_piece") {
      options.one_piece = true;
      continue;
    }
    std::size_t bytes = 0;
    const char* const end = argument.data() + argument.size();
    if (!argument.starts_with(kReplyBytes) ||
        std::from_chars(argument.data() + kReplyBytes.size(), end, bytes).ptr != end) {
      std::fprintf(stderr, "%s: %s: expected --reply_bytes=N or --one_piece\n", argv[0], argv[i]);
      std::exit(2);
    }
    options.reply_bytes = bytes;
  }
  return options;
}

// The signals that end an echo, which every thread has to leave to whoever waits for them: call it first.
inline sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

inline void say_listening(int port) {
  std::printf("listening on %d\n", port);
  std::fflush(stdout);
}

inline void say_served(std::uint64_t requests) {
  std::printf("served %llu requests\n", static_cast<unsigned long long>(requests));
  std::fflush(stdout);
}

}  // namespace echo
