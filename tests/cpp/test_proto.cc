// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "wire/proto.h"

namespace headrace {
namespace {

using namespace std::string_literals;

// The fields of a message, or nothing where it is malformed.
std::vector<Field> read(std::string_view message, bool* ok) {
  std::vector<Field> fields;
  FieldReader reader(message);
  for (Field field; reader.next(&field);) fields.push_back(field);
  *ok = reader.ok();
  return fields;
}

bool reads(std::string_view message) {
  bool ok;
  read(message, &ok);
  return ok;
}

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Varint, OfEveryLengthComesBackAsItWasWritten) {
  for (int bits = 0; bits <= 64; ++bits) {
    for (std::int64_t offset : {-1, 0, 1}) {
      const std::uint64_t value =
          (bits == 64 ? 0 : std::uint64_t{1} << bits) + static_cast<std::uint64_t>(offset);  // wraps at both ends
      std::string text;
      FieldWriter writer(&text);
      writer.write_varint(value);
      writer.flush();
      EXPECT_EQ(text.size(), varint_bytes(value));
      const char* position = text.data();
      std::uint64_t back;
      ASSERT_TRUE(read_varint(&position, text.data() + text.size(), &back));
      EXPECT_EQ(back, value);
      EXPECT_EQ(position, text.data() + text.size());
      for (std::size_t cut = 0; cut < text.size(); ++cut) {
        position = text.data();
        EXPECT_FALSE(read_varint(&position, text.data() + cut, &back));
      }
    }
  }
}

TEST(Varint, LongerThanTenBytesIsMalformed) {
  EXPECT_TRUE(reads("\x08" + repeated("\xff", 9) + "\x01"));
  EXPECT_FALSE(reads("\x08" + repeated("\xff", 10) + "\x01"));
}

TEST(Varint, DropsTheBitsBeyondThe64th) {
  bool ok;
  const std::string message = "\x08" + repeated("\xff", 9) + "\x7f";
  const std::vector<Field> fields = read(message, &ok);
  ASSERT_TRUE(ok);
  EXPECT_EQ(fields[0].varint, std::numeric_limits<std::uint64_t>::max());
}

TEST(FieldReader, ReadsEveryWireTypeInOrder) {
  bool ok;
  const std::string message =
      "\x08\x96\x01"s + "\x11" + "12345678" + "\x1a\x03" + "abc" + "\x23\x08\x01\x24" + "\x2d" + "wxyz";
  const std::vector<Field> fields = read(message, &ok);
  ASSERT_TRUE(ok);
  ASSERT_EQ(fields.size(), 5u);
  EXPECT_EQ(fields[0].tag, make_tag(1, WireType::kVarint));
  EXPECT_EQ(fields[0].varint, 150u);
  EXPECT_EQ(fields[1].tag, make_tag(2, WireType::kFixed64));
  EXPECT_EQ(fields[1].bytes, "12345678");
  EXPECT_EQ(fields[2].tag, make_tag(3, WireType::kBytes));
  EXPECT_EQ(fields[2].bytes, "abc");
  EXPECT_EQ(fields[3].tag, make_tag(4, WireType::kGroup));
  EXPECT_TRUE(fields[3].bytes.empty());
  EXPECT_EQ(fields[4].tag, make_tag(5, WireType::kFixed32));
  EXPECT_EQ(fields[4].bytes, "wxyz");
}

TEST(FieldReader, ReadsAnEmptyMessageAsNoFields) { EXPECT_TRUE(reads("")); }

TEST(FieldReader, RefusesWhatIsNoField) {
  EXPECT_FALSE(reads("\x00\x00"s)) << "field number 0";
  EXPECT_FALSE(reads("\x0e\x00"s)) << "wire type 6";
  EXPECT_FALSE(reads("\x0f\x00"s)) << "wire type 7";
  EXPECT_FALSE(reads("\x0c")) << "the end of a group that never began";
  EXPECT_FALSE(reads("\x98\x80\x80\x80\x80\x00\x00"s)) << "a tag of six bytes";
  EXPECT_FALSE(
      reads("\x0a\x04"
            "abc"))
      << "a length beyond the message";
  EXPECT_FALSE(
      reads("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
            "abc"))
      << "a length of 2^64-1";
}

TEST(FieldReader, StaysMalformed) {
  FieldReader reader("\x0e\x08\x01");  // a field that is none, then one that would be
  Field field;
  EXPECT_FALSE(reader.next(&field));
  EXPECT_FALSE(reader.next(&field));
  EXPECT_FALSE(reader.ok());
}

TEST(FieldReader, SkipsGroupsWithGroupsInThem) {
  EXPECT_TRUE(reads("\x0b\x13\x08\x01\x0a\x01\x0c\x14\x0c"));
  EXPECT_FALSE(reads("\x0b\x13\x0c\x14")) << "ends in the wrong order";
  EXPECT_FALSE(reads("\x0b\x08\x01")) << "never ends";
  EXPECT_FALSE(reads("\x0b\x00\x0c"s)) << "field number 0 inside";
  EXPECT_TRUE(reads(repeated("\x0b", 100) + repeated("\x0c", 100)));
  EXPECT_FALSE(reads(repeated("\x0b", 101) + repeated("\x0c", 101))) << "deeper than protobuf's limit";
}

TEST(FieldReader, RefusesEveryTruncationInsideAField) {
  const std::string message =
      "\x08\x96\x01"s + "\x11" + "12345678" + "\x1a\x03" + "abc" + "\x23\x08\x01\x24" + "\x2d" + "wxyz";
  const std::vector<std::size_t> ends = {0, 3, 12, 17, 21, 26};  // of the fields
  ASSERT_EQ(message.size(), ends.back());
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    const std::string part = message.substr(0, cut);  // so that the sanitizers see the end
    EXPECT_EQ(reads(part), std::find(ends.begin(), ends.end(), cut) != ends.end()) << cut;
  }
}

TEST(FieldReader, SurvivesNoise) {
  std::mt19937 random(1);
  int well_formed = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string noise(random() % 24, '\0');
    for (char& c : noise) c = static_cast<char>(random() % 4 == 0 ? random() : random() % 48);
    well_formed += reads(noise);
  }
  EXPECT_GT(well_formed, 500);
  EXPECT_LT(well_formed, 19'500);
}

TEST(FieldWriter, WritesExactlyTheBytesThatWereCounted) {
  const std::string long_text(2000, 'x');
  std::size_t size = 0;
  size += varint_field_bytes(1, 150);
  size += bytes_field_bytes(16, 3);
  size += bytes_field_bytes(2, long_text.size());
  std::string text;
  text.reserve(size);
  const char* const memory = text.data();
  FieldWriter writer(&text);
  writer.write_varint_field(1, 150);
  writer.write_bytes_field(16, "abc");
  writer.write_bytes_field(2, long_text);
  writer.flush();
  EXPECT_EQ(text.size(), size);
  EXPECT_EQ(text.data(), memory) << "it had to move";
  EXPECT_EQ(text,
            "\x08\x96\x01\x82\x01\x03"
            "abc\x12\xd0\x0f"s +
                long_text);
}

TEST(FieldWriter, KeepsTheOrderOfShortAndLongPieces) {
  std::string expected, text;
  FieldWriter writer(&text);
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    const std::string piece(random() % (i % 7 == 0 ? 1500 : 40), static_cast<char>('a' + i % 26));
    writer.write_raw(piece.data(), piece.size());
    writer.write_varint(static_cast<std::uint64_t>(i % 128));
    expected += piece;
    expected += static_cast<char>(i % 128);
  }
  writer.flush();
  EXPECT_EQ(text, expected);
}

// Slow and plainly right: decodes code points and looks at what they are.
bool is_utf8_by_definition(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    std::uint32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if (byte >> 6 != 2) return false;
      point = point << 6 | (byte & 0x3F);
    }
    const std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < least[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    i += length;
  }
  return true;
}

TEST(IsUtf8, AgreesWithTheDefinitionOnAllShortTexts) {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      for (std::string_view tail : {"", "\x80", "\xbf", "\x80\x80", "\x80\x80\x80", "a"}) {
        std::string text = {static_cast<char>(a), static_cast<char>(b)};
        text += tail;
        ASSERT_EQ(is_utf8(text), is_utf8_by_definition(text)) << a << ' ' << b << ' ' << tail.size();
      }
    }
  }
}

TEST(IsUtf8, FindsABadByteAnywhereInALongText) {
  const std::string good = "abcdefghijkl\xc3\xa4mnopqrstuv\xf0\x9f\x8c\x8awxyz\xe2\x82\xac";
  ASSERT_TRUE(is_utf8(good));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = '\xff';
    EXPECT_FALSE(is_utf8(bad)) << i;
    const std::string part = good.substr(0, i);
    EXPECT_EQ(is_utf8(part), is_utf8_by_definition(part)) << i;
  }
}

}  // namespace
}  // namespace headrace
