// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "http2_client.h"
#include "net/message_reader.h"

namespace headrace {
namespace {

class MessageReaderTest : public testing::Test {
 protected:
  Status read(std::string_view* bytes, bool may_be_compressed = false) {
    std::span<const std::byte> data = std::as_bytes(std::span(*bytes));
    Status status =
        reader_.read(&data, {.message_bytes_max = 100, .may_be_compressed = may_be_compressed}, budget_, nullptr);
    bytes->remove_prefix(bytes->size() - data.size());
    return status;
  }

  std::string take(bool compressed = false) {
    bool was_compressed = !compressed;
    const MessagePtr message = reader_.take(&was_compressed);
    EXPECT_EQ(was_compressed, compressed);
    return {reinterpret_cast<const char*>(message->data()), message->size()};
  }

  std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(200);
  MessageReader reader_;
};

TEST_F(MessageReaderTest, ReadsMessagesInPiecesOfAnySize) {
  const std::string bytes = framed("first") + framed("") + framed("third");
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    std::vector<std::string> messages;
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      std::string_view piece = std::string_view(bytes).substr(at, size);
      while (!piece.empty()) {
        ASSERT_TRUE(read(&piece).ok());
        if (reader_.has_message()) messages.push_back(take());
      }
    }
    EXPECT_EQ(messages, (std::vector<std::string>{"first", "", "third"}));
    EXPECT_FALSE(reader_.in_message());
  }
}

TEST_F(MessageReaderTest, KnowsWhetherItIsInAMessage) {
  EXPECT_FALSE(reader_.in_message());
  const std::string bytes = framed("a");
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    std::string_view piece = std::string_view(bytes).substr(i, 1);
    ASSERT_TRUE(read(&piece).ok());
    EXPECT_TRUE(reader_.in_message());
  }
  std::string_view last = std::string_view(bytes).substr(bytes.size() - 1);
  ASSERT_TRUE(read(&last).ok());
  EXPECT_FALSE(reader_.in_message());
  EXPECT_EQ(take(), "a");
}

TEST_F(MessageReaderTest, RefusesByThePrefix) {
  const std::string too_long = framed(std::string(101, 'x')).substr(0, 5);
  std::string_view bytes = too_long;
  EXPECT_EQ(read(&bytes).code(), Code::kResourceExhausted);
  reader_.reset();
  const std::string compressed = framed("a", true);
  bytes = compressed;
  EXPECT_EQ(read(&bytes).code(), Code::kInternal);
  reader_.reset();
  bytes = compressed;
  EXPECT_TRUE(read(&bytes, true).ok());
  EXPECT_EQ(take(true), "a");
  bytes = "\x02xxxx";
  EXPECT_EQ(read(&bytes).code(), Code::kInternal);
}

TEST_F(MessageReaderTest, KeepsTheBudgetAsLongAsTheMessage) {
  const std::string bytes = framed(std::string(100, 'x'));
  std::string_view piece = std::string_view(bytes).substr(0, 50);
  ASSERT_TRUE(read(&piece).ok());
  EXPECT_EQ(budget_->was_taken(), 100u);
  reader_.reset();
  EXPECT_EQ(budget_->was_taken(), 0u);
  bool compressed = false;
  std::string_view whole = bytes;
  ASSERT_TRUE(read(&whole).ok());
  MessagePtr first = reader_.take(&compressed);
  whole = bytes;
  ASSERT_TRUE(read(&whole).ok());
  const MessagePtr second = reader_.take(&compressed);
  whole = bytes;
  EXPECT_EQ(read(&whole).code(), Code::kResourceExhausted);
  reader_.reset();
  first = nullptr;
  whole = bytes;
  EXPECT_TRUE(read(&whole).ok());
}

}  // namespace
}  // namespace headrace
