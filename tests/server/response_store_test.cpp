#include "server/response_store.h"

#include <gtest/gtest.h>

#include <thread>

namespace quire::server {
namespace {

constexpr std::size_t kRoom = 1 << 20;

std::string text_of(std::size_t bytes) { return std::string(bytes, 'x'); }

// A first turn: an answer of so many bytes to an input of as many.
void put(ResponseStore& store, const std::string& id, std::size_t bytes, std::size_t key = 0) {
  store.put(id, key, "{}", {}, text_of(bytes), text_of(bytes));
}

TEST(ResponseStoreTest, GivesBackWhatWasPut) {
  ResponseStore store(kRoom);
  store.put("a", 3, "{1}", {}, "[2]", "[3]");
  const auto found = store.find("a", 3);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found->answer, "{1}");
  ASSERT_EQ(found->items.size(), 2U);
  EXPECT_EQ(*found->items[0] + *found->items[1], "[2][3]");
}

TEST(ResponseStoreTest, AnotherKeyFindsAndErasesNothing) {
  ResponseStore store(kRoom);
  put(store, "a", 10, 1);
  EXPECT_EQ(store.find("a", 2), nullptr);
  EXPECT_FALSE(store.erase("a", 2));
  EXPECT_NE(store.find("a", 1), nullptr);
  EXPECT_TRUE(store.erase("a", 1));
  EXPECT_EQ(store.find("a", 1), nullptr);
  EXPECT_FALSE(store.erase("a", 1));
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(ResponseStoreTest, KeepsItsBoundOfBytes) {
  ResponseStore store(kRoom);
  for (int i = 0; i < 1000; ++i) {
    put(store, std::to_string(i), 5000);
    ASSERT_LE(store.bytes(), kRoom);
  }
  EXPECT_GT(store.bytes(), kRoom / 2);
  EXPECT_EQ(store.find("0", 0), nullptr);
  EXPECT_NE(store.find("999", 0), nullptr);
}

TEST(ResponseStoreTest, SmallAnswersCountWithWhatTheyTakeBeside) {
  ResponseStore store(kRoom);
  for (int i = 0; i < 10000; ++i) put(store, std::to_string(i), 0);
  EXPECT_EQ(store.find("0", 0), nullptr);
}

TEST(ResponseStoreTest, KeepsItsBoundOfResponses) {
  ResponseStore store(kRoom, 3);
  for (const char* id : {"a", "b", "c", "d"}) put(store, id, 1);
  EXPECT_EQ(store.find("a", 0), nullptr);
  for (const char* id : {"b", "c", "d"}) EXPECT_NE(store.find(id, 0), nullptr);
}

TEST(ResponseStoreTest, WhatIsAskedForStays) {
  ResponseStore store(kRoom, 2);
  put(store, "a", 1);
  put(store, "b", 1);
  EXPECT_NE(store.find("a", 0), nullptr);
  put(store, "c", 1);
  EXPECT_NE(store.find("a", 0), nullptr);
  EXPECT_EQ(store.find("b", 0), nullptr);
}

TEST(ResponseStoreTest, WhatCannotFitPushesNothingOut) {
  ResponseStore store(kRoom);
  put(store, "a", 10);
  put(store, "large", kRoom);
  EXPECT_EQ(store.find("large", 0), nullptr);
  EXPECT_NE(store.find("a", 0), nullptr);
  ResponseStore none(0);
  EXPECT_FALSE(none.keeps());
  put(none, "a", 1);
  EXPECT_EQ(none.find("a", 0), nullptr);
}

TEST(ResponseStoreTest, ALongConversationIsNotKeptWhateverTheRoom) {
  ResponseStore store(std::size_t{1} << 30);
  put(store, "a", ResponseStore::kMaxConversationBytes / 2);
  EXPECT_EQ(store.find("a", 0), nullptr);  // with its answer it is longer
  put(store, "b", ResponseStore::kMaxConversationBytes / 2 - 1);
  ASSERT_NE(store.find("b", 0), nullptr);
  store.put("c", 0, "{}", store.find("b", 0)->items, "[]", "[]");
  EXPECT_EQ(store.find("c", 0), nullptr);
}

TEST(ResponseStoreTest, TurnsShareTheTextsBeforeThem) {
  ResponseStore store(kRoom);
  put(store, "0", 100000);
  const std::size_t first = store.bytes();
  for (int i = 0; i < 20; ++i)
    store.put(std::to_string(i + 1), 0, "{}", store.find(std::to_string(i), 0)->items, "[]", "[]");
  EXPECT_LT(store.bytes(), 2 * first);
  EXPECT_EQ(store.find("20", 0)->items.size(), 42U);
  // The texts live, and count, as long as a turn has them.
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store.erase(std::to_string(i), 0));
  EXPECT_GT(store.bytes(), 200000U);
  EXPECT_TRUE(store.erase("20", 0));
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(ResponseStoreTest, WhatSomebodyReadsOutlivesItsPlace) {
  ResponseStore store(kRoom, 1);
  put(store, "a", 100);
  const auto read = store.find("a", 0);
  put(store, "b", 1);
  EXPECT_EQ(store.find("a", 0), nullptr);
  EXPECT_EQ(*read->items[0], text_of(100));
}

TEST(ResponseStoreTest, ServesManyThreads) {
  ResponseStore store(kRoom / 16);
  std::vector<std::thread> threads;
  for (std::size_t key = 0; key < 4; ++key)
    threads.emplace_back([&store, key] {
      for (int i = 0; i < 500; ++i) {
        const std::string id = std::to_string(i % 50);  // of its own key
        const std::string mine = std::to_string(key) + "-" + id;
        if (const auto found = store.find(mine, key))
          store.put(mine + "+", key, "{}", found->items, "[]", text_of(300));
        else
          put(store, mine, 300, key);
        EXPECT_EQ(store.find(mine, key + 1), nullptr);
        store.erase(mine, key);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.bytes(), kRoom / 16);
}

}  // namespace
}  // namespace quire::server
