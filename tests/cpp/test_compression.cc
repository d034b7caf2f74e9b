// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>

#include "net/compression.h"

namespace headrace {
namespace {

constexpr std::size_t kAmple = 1 << 30;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string deflated(Encoding encoding, std::string_view text) {
  std::string out;
  EXPECT_TRUE(deflate(encoding, bytes_of(text), &out).ok());
  return out;
}

Status inflate_text(Encoding encoding, std::string_view text, std::size_t bytes_max = kAmple) {
  std::string out;
  return inflate(encoding, bytes_of(text), bytes_max, &out);
}

std::string random_text(std::size_t size, int letters) {
  std::mt19937 random(static_cast<std::uint32_t>(size));
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() % static_cast<unsigned>(letters));
  return text;
}

TEST(Encoding, HasANameAndIsFoundByIt) {
  for (const Encoding encoding : {Encoding::kIdentity, Encoding::kGzip, Encoding::kDeflate})
    EXPECT_EQ(parse_encoding(encoding_name(encoding)), encoding);
  for (const char* name : {"", "snappy", "GZIP", "gzip ", "identit"}) EXPECT_FALSE(parse_encoding(name)) << name;
}

TEST(Encoding, IsOneOfThoseThatAClientTakes) {
  constexpr Encodings kIdentity = bit_of(Encoding::kIdentity), kGzip = bit_of(Encoding::kGzip),
                      kDeflate = bit_of(Encoding::kDeflate);
  EXPECT_EQ(encodings_in("identity, deflate, gzip"), kIdentity | kDeflate | kGzip);
  EXPECT_EQ(encodings_in(kAcceptedEncodings), kIdentity | kDeflate | kGzip);
  EXPECT_EQ(encodings_in("gzip,deflate"), kDeflate | kGzip);
  EXPECT_EQ(encodings_in("snappy \t,\t gzip "), kGzip);
  EXPECT_EQ(encodings_in("identity"), kIdentity);
  for (const char* accepted : {"", "snappy, br", ",,", "gzipped", " ", "gzip deflate"})
    EXPECT_EQ(encodings_in(accepted), 0u) << '"' << accepted << '"';
}

class Compression : public testing::TestWithParam<Encoding> {};

INSTANTIATE_TEST_SUITE_P(Encodings, Compression,
                         testing::Values(Encoding::kIdentity, Encoding::kGzip, Encoding::kDeflate),
                         [](const auto& info) { return std::string(encoding_name(info.param)); });

TEST_P(Compression, GivesBackWhatItWasGiven) {
  for (const std::size_t size : {0, 1, 100, 1'023, 1'024, 1'025, 100'000, 5'000'000}) {
    for (const int letters : {1, 2, 256}) {
      const std::string text = random_text(size, letters);
      std::string out = "what was there before";
      ASSERT_TRUE(inflate(GetParam(), bytes_of(deflated(GetParam(), text)), kAmple, &out).ok());
      EXPECT_TRUE(out == text) << size << " bytes of " << letters;
    }
  }
}

TEST_P(Compression, ComesOutToTheLastByteThatIsAllowed) {
  for (const std::size_t size : {0, 1'000, 1'000'000}) {
    const std::string encoded = deflated(GetParam(), std::string(size, 'x'));
    EXPECT_TRUE(inflate_text(GetParam(), encoded, size).ok());
    if (size == 0) continue;
    const Status status = inflate_text(GetParam(), encoded, size - 1);
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(status.message(), "SERVER: Decompressed message larger than max (" + std::to_string(size - 1) + ")");
  }
}

class Compressing : public Compression {};

INSTANTIATE_TEST_SUITE_P(Encodings, Compressing, testing::Values(Encoding::kGzip, Encoding::kDeflate),
                         [](const auto& info) { return std::string(encoding_name(info.param)); });

TEST_P(Compressing, MakesWhatRepeatsShort) {
  EXPECT_LT(deflated(GetParam(), std::string(1 << 20, 'x')).size(), 2'000u);
}

TEST_P(Compressing, StopsABombAtTheLimit) {
  const std::string bomb = deflated(GetParam(), std::string(64 << 20, '\0'));
  std::string out;
  EXPECT_EQ(inflate(GetParam(), bytes_of(bomb), 1'000, &out).code(), Code::kResourceExhausted);
  EXPECT_LE(out.capacity(), 4'000u);
}

TEST_P(Compressing, AsksWhetherToGoOnAndEndsWhenToldSo) {
  const std::string text(32 << 20, '\0');
  const std::string encoded = deflated(GetParam(), text);
  int asked = 0;
  const MayGrow may_go_on = [&asked](std::size_t) { return ++asked < 3 ? Status() : Unavailable("enough"); };
  std::string out;
  EXPECT_EQ(deflate(GetParam(), bytes_of(text), &out, may_go_on).code(), Code::kUnavailable);
  EXPECT_EQ(asked, 3);
  asked = 0;
  EXPECT_EQ(inflate(GetParam(), bytes_of(encoded), kAmple, &out, may_go_on).code(), Code::kUnavailable);
  EXPECT_EQ(asked, 3);
}

TEST_P(Compressing, RefusesWhatWasCutShort) {
  const std::string encoded = deflated(GetParam(), random_text(500, 4));
  for (std::size_t size = 0; size < encoded.size(); ++size)
    EXPECT_EQ(inflate_text(GetParam(), encoded.substr(0, size)).code(), Code::kInternal) << size;
}

TEST_P(Compressing, RefusesWhatGoesOnBehindItsEnd) {
  EXPECT_EQ(inflate_text(GetParam(), deflated(GetParam(), "a message") + "x").code(), Code::kInternal);
}

TEST_P(Compressing, ChecksTheChecksum) {
  std::string encoded = deflated(GetParam(), "a message");
  const std::size_t last_of_checksum = encoded.size() - (GetParam() == Encoding::kGzip ? 5 : 1);
  encoded[last_of_checksum] ^= 1;
  const Status status = inflate_text(GetParam(), encoded);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(status.message().ends_with("incorrect data check")) << status.message();
}

TEST_P(Compressing, SurvivesWhateverIsChanged) {
  const std::string encoded = deflated(GetParam(), random_text(300, 3));
  std::mt19937 random(5);
  for (int i = 0; i < 5'000; ++i) {
    std::string changed = encoded;
    changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
    std::string out;
    const Status status = inflate(GetParam(), bytes_of(changed), 1'000, &out);
    if (status.ok()) {
      EXPECT_LE(out.size(), 1'000u);  // a checksum of 32 bits lets some changes pass
    } else {
      EXPECT_TRUE(status.code() == Code::kInternal || status.code() == Code::kResourceExhausted) << status.message();
    }
  }
}

TEST(CompressedMessage, IsNotTakenForAnother) {
  EXPECT_EQ(inflate_text(Encoding::kGzip, deflated(Encoding::kDeflate, "a message")).code(), Code::kInternal);
  const Status status = inflate_text(Encoding::kDeflate, deflated(Encoding::kGzip, "a message"));
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(), "a message that is not deflate: incorrect header check");
}

}  // namespace
}  // namespace headrace
