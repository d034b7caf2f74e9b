// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <string>

#include "net/grpc_codec.h"

namespace headrace {
namespace {

TEST(GrpcTimeout, HasSixUnits) {
  EXPECT_EQ(parse_grpc_timeout_ns("7n"), 7);
  EXPECT_EQ(parse_grpc_timeout_ns("7u"), 7'000);
  EXPECT_EQ(parse_grpc_timeout_ns("100m"), 100'000'000);
  EXPECT_EQ(parse_grpc_timeout_ns("2S"), 2'000'000'000);
  EXPECT_EQ(parse_grpc_timeout_ns("3M"), 180'000'000'000);
  EXPECT_EQ(parse_grpc_timeout_ns("1H"), 3'600'000'000'000);
}

TEST(GrpcTimeout, HasUpToEightDigits) {
  EXPECT_EQ(parse_grpc_timeout_ns("99999999n"), 99'999'999);
  EXPECT_EQ(parse_grpc_timeout_ns("00000001u"), 1'000);
  EXPECT_EQ(parse_grpc_timeout_ns("0m"), 0);
  EXPECT_EQ(parse_grpc_timeout_ns("999999999n"), std::nullopt);
}

TEST(GrpcTimeout, OfAgesIsTheLongestThereIs) {
  EXPECT_EQ(parse_grpc_timeout_ns("2562047H"), 2'562'047 * 3'600'000'000'000);
  EXPECT_EQ(parse_grpc_timeout_ns("2562048H"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_grpc_timeout_ns("99999999H"), std::numeric_limits<std::int64_t>::max());
}

TEST(GrpcTimeout, IsNothingElse) {
  for (const char* text : {"", "m", "5", "5s", "5h", "-1m", "+1m", "1.5S", " 1m", "1m ", "1 m", "1mm", "0x1n", "１m"})
    EXPECT_EQ(parse_grpc_timeout_ns(text), std::nullopt) << '"' << text << '"';
}

TEST(GrpcMessage, LetsPrintableAsciiAsItIs) {
  std::string printable;
  for (char c = ' '; c <= '~'; ++c)
    if (c != '%') printable.push_back(c);
  EXPECT_EQ(percent_encoded(printable), printable);
  EXPECT_EQ(percent_encoded(""), "");
}

TEST(GrpcMessage, EncodesTheRestByteForByte) {
  EXPECT_EQ(percent_encoded("100%"), "100%25");
  EXPECT_EQ(percent_encoded("two\r\nlines\x7F"), "two%0D%0Alines%7F");
  EXPECT_EQ(percent_encoded(std::string_view("\0", 1)), "%00");
  EXPECT_EQ(percent_encoded("gr\xC3\xB6\xC3\x9F"
                            "er"),
            "gr%C3%B6%C3%9Fer");
  EXPECT_EQ(percent_encoded("\xE2\x82\xAC \xF0\x9F\x9A\x80"), "%E2%82%AC %F0%9F%9A%80");
}

TEST(GrpcMessage, IsUtf8WhateverItWas) {
  const std::string_view kReplaced = "%EF%BF%BD";
  for (const char* text : {"\xFF", "\x80", "\xC3", "\xC0", "\xF5"}) EXPECT_EQ(percent_encoded(text), kReplaced);
  EXPECT_EQ(percent_encoded("a\xFF"
                            "b"),
            "a" + std::string(kReplaced) + "b");
  EXPECT_EQ(percent_encoded("\xC3\xC3\xB6"), std::string(kReplaced) + "%C3%B6");
}

TEST(GrpcContentType, MayNameAFormatOrParameters) {
  for (const char* text : {"application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"})
    EXPECT_TRUE(is_grpc_content_type(text)) << text;
  for (const char* text : {"", "application/grp", "application/grpc-web", "application/json", "application/grpcx",
                           " application/grpc", "text/plain"})
    EXPECT_FALSE(is_grpc_content_type(text)) << text;
}

TEST(MessagePrefix, IsAFlagAndTheLengthBigEndian) {
  std::array<std::byte, MessagePrefix::kBytes> bytes;
  MessagePrefix{.compressed = true, .length = 0x01020304}.encode(bytes.data());
  EXPECT_EQ(bytes, (std::array{std::byte{1}, std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}));
}

TEST(MessagePrefix, DecodesWhatItEncodes) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    const MessagePrefix prefix{.compressed = i % 2 == 0, .length = static_cast<std::uint32_t>(random()) >> i % 32};
    std::array<std::byte, MessagePrefix::kBytes> bytes;
    prefix.encode(bytes.data());
    const std::optional<MessagePrefix> decoded = MessagePrefix::decode(bytes);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->compressed, prefix.compressed);
    EXPECT_EQ(decoded->length, prefix.length);
  }
}

TEST(MessagePrefix, HasNoOtherFlags) {
  for (int flag = 2; flag < 256; ++flag) {
    const std::array<std::byte, MessagePrefix::kBytes> bytes{static_cast<std::byte>(flag)};
    EXPECT_FALSE(MessagePrefix::decode(bytes)) << flag;
  }
}

}  // namespace
}  // namespace headrace
