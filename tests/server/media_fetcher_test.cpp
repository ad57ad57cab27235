// Whose pictures are fetched next, how many wait, and when they are given up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/media/media_fetcher.h"
#include "server/picture_host.h"

namespace quire::test {
namespace {

using server::MediaFetcher;
using server::MediaOptions;
using testing::HasSubstr;

// What a request was told, in its own time.
struct Told {
  std::mutex mutex;
  std::optional<MediaFetcher::Fetched> result;
  std::atomic<bool> gone{false};

  bool any() {
    const std::lock_guard lock(mutex);
    return result.has_value();
  }
  int status() {  // 200: the pictures are there
    const std::lock_guard lock(mutex);
    return !result ? 0 : result->ok() ? 200 : result->error().status;
  }
};
using ToldPtr = std::shared_ptr<Told>;

class Fetcher : public testing::Test {
 protected:
  Fetcher() {
    host_.add_file("/a", "picture");
    host_.add_silence("/silence");
  }
  void start(MediaOptions options) { fetcher_.emplace(std::move(options), registry_); }
  server::ApiStatus fetch(const std::string& client, const std::vector<std::string>& urls, const ToldPtr& told,
                          size_t body_bytes = 0) {
    MediaFetcher::Request r{.client = client,
                            .body_bytes = body_bytes,
                            .policy = *server::MediaPolicy::create({"127.0.0.1:" + host_.port(), "name.example"}, ""),
                            .max_bytes = 1000,
                            .pictures = {},
                            .gone = [told] { return told->gone.load(); },
                            .done =
                                [told](MediaFetcher::Fetched result) {
                                  const std::lock_guard lock(told->mutex);
                                  EXPECT_FALSE(told->result) << "once";
                                  told->result.emplace(std::move(result));
                                }};
    for (const std::string& url : urls) {
      auto file = std::make_shared<server::PictureFile>();
      file->url = url;
      file->where = file->field = url;
      r.pictures.push_back(std::move(file));
    }
    return fetcher_->fetch(std::move(r));
  }
  ToldPtr fetched(const std::string& client, const std::vector<std::string>& urls) {
    auto told = std::make_shared<Told>();
    EXPECT_TRUE(fetch(client, urls, told).ok());
    return told;
  }
  std::string url(const std::string& path) const { return host_.url(path); }

  PictureHost host_;
  server::Registry registry_;
  std::optional<MediaFetcher> fetcher_;
};

TEST_F(Fetcher, BringsPicturesInTheirOrder) {
  start({});
  std::vector<std::string> urls;
  for (int i = 0; i < 50; ++i) {
    host_.add_file(fmt::format("/{}", i), fmt::format("picture {}", i));
    urls.push_back(url(fmt::format("/{}", i)));
  }
  const ToldPtr told = fetched("a", urls);
  ASSERT_TRUE(eventually([&] { return told->any(); }));
  ASSERT_EQ(told->status(), 200);
  for (size_t i = 0; i < urls.size(); ++i) {
    const server::PictureFile& file = *(**told->result)[i];
    EXPECT_EQ(std::string(file.bytes.begin(), file.bytes.end()), fmt::format("picture {}", i));
    EXPECT_EQ(file.where, urls[i]);
    EXPECT_EQ(file.url, "");
  }
}

TEST_F(Fetcher, OneClientHoldsUpNoOther) {
  start({.threads = 4});
  std::vector<ToldPtr> slow;
  for (int i = 0; i < 10; ++i) slow.push_back(fetched("greedy", {url("/silence"), url("/silence")}));
  ASSERT_TRUE(eventually([&] { return host_.silent() == 2; }));
  for (int i = 0; i < 5; ++i) {
    const ToldPtr told = fetched("modest", {url("/a"), url("/a"), url("/a")});
    ASSERT_TRUE(eventually([&] { return told->any(); }));
    EXPECT_EQ(told->status(), 200);
  }
  EXPECT_EQ(host_.silent(), 2) << "half of the threads";
  for (const ToldPtr& told : slow) EXPECT_FALSE(told->any());
}

TEST_F(Fetcher, FirstErrorEndsARequest) {
  start({.threads = 4, .timeout = std::chrono::minutes(10)});
  const ToldPtr told = fetched("a", {url("/silence"), url("/none"), url("/a"), url("/a"), url("/a")});
  ASSERT_TRUE(eventually([&] { return told->any(); })) << "the silent one is left";
  EXPECT_EQ(told->status(), 400);
  EXPECT_THAT(told->result->error().message, HasSubstr("/none': "));
  EXPECT_EQ(told->result->error().code, "invalid_image_url");
}

// Whose turn does not come in time is told so, and who has left is forgotten, while all threads are busy.
TEST_F(Fetcher, WaitersAreToldInTime) {
  const auto waiting = [&] { return registry_.gauge("quire:media_waiting_requests", "").value(); };
  start({.threads = 1});
  const ToldPtr busy = fetched("a", {url("/silence")});
  ASSERT_TRUE(eventually([&] { return host_.silent() == 1; }));
  const ToldPtr left = fetched("b", {url("/a"), url("/a")});
  EXPECT_EQ(waiting(), 2);
  left->gone = true;
  EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_FALSE(left->any()) << "nobody waited";
  EXPECT_EQ(host_.silent(), 1);
  EXPECT_FALSE(busy->any());
  fetcher_->stop();
  start({.threads = 1, .timeout = std::chrono::milliseconds(300)});
  std::vector<ToldPtr> all;
  for (const char* const client : {"a", "b", "c", "d"}) all.push_back(fetched(client, {url("/silence")}));
  for (const ToldPtr& told : all) {
    EXPECT_TRUE(eventually([&] { return told->any(); }));
    EXPECT_THAT(told->status(), testing::AnyOf(400, 503)) << "its host was late, or its turn did not come";
  }
}

TEST_F(Fetcher, RoomIsBounded) {
  start({.max_waiting = 4, .max_waiting_bytes = 1000});
  std::vector<ToldPtr> all;
  const auto status = [&](const char* client, size_t bytes) {
    all.push_back(std::make_shared<Told>());
    const server::ApiStatus s = fetch(client, {url("/silence")}, all.back(), bytes);
    return s.ok() ? 200 : s.error().status;
  };
  EXPECT_EQ(status("a", 0), 200);
  EXPECT_EQ(status("a", 0), 200);
  EXPECT_EQ(status("a", 0), 429);
  EXPECT_EQ(status("b", 0), 200);
  EXPECT_EQ(status("c", 0), 200);
  EXPECT_EQ(status("d", 0), 503);
  fetcher_->stop();
  start({.max_waiting_bytes = 1000});
  EXPECT_EQ(status("a", 5000), 200) << "one always fits";
  EXPECT_EQ(status("b", 1), 503);
  fetcher_->stop();
  start({.max_waiting_bytes = 1000});
  EXPECT_EQ(status("a", 400), 200);
  EXPECT_EQ(status("a", 200), 429);
  EXPECT_EQ(status("b", 200), 200);
}

TEST_F(Fetcher, StopTellsEverybody) {
  start({.threads = 2});
  std::vector<ToldPtr> all;
  for (int i = 0; i < 10; ++i) all.push_back(fetched(i % 2 == 0 ? "a" : "b", {url("/silence"), url("/a")}));
  ASSERT_TRUE(eventually([&] { return host_.silent() == 2; }));
  fetcher_->stop();
  for (const ToldPtr& told : all) EXPECT_EQ(told->status(), 503);
  EXPECT_EQ(fetch("a", {url("/a")}, std::make_shared<Told>()).error().status, 503);
  fetcher_->stop();
}

// The system's resolver may hang: threads that are left with it are bounded, and addresses need none.
TEST_F(Fetcher, NamesThatHangAreBounded) {
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto asked = std::make_shared<std::atomic<int>>(0);
  start({.threads = 32,
         .timeout = std::chrono::milliseconds(100),
         .look_up = [=](const std::string& host, const std::string&) {
           EXPECT_EQ(host, "name.example");
           ++*asked;
           while (!*released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
           return hub::Lookup{};
         }});
  const auto words = [&] {
    const ToldPtr told = fetched("a", {"http://name.example/a"});
    EXPECT_TRUE(eventually([&] { return told->any(); }));
    return told->result->ok() ? "" : told->result->error().message;
  };
  EXPECT_THAT(words(), HasSubstr("its address was not found in time"));
  std::string last;
  for (int i = 0; i < 200 && last.find("too many") == std::string::npos; ++i) {
    std::vector<ToldPtr> several;
    for (int k = 0; k < 16; ++k) several.push_back(fetched("a", {"http://name.example/a"}));
    for (const ToldPtr& told : several) EXPECT_TRUE(eventually([&] { return told->any(); }));
    last = words();
  }
  EXPECT_THAT(last, HasSubstr("too many names are being looked up"));
  EXPECT_EQ(*asked, server::HostLookup::kMostUnderWay);
  const ToldPtr told = fetched("b", {url("/a")});
  EXPECT_TRUE(eventually([&] { return told->status() == 200; }));
  *released = true;
  EXPECT_TRUE(eventually([&] { return words().find("there is no address") != std::string::npos; }));
}

// Many requests of many clients, some of whom leave: each is told once, or not at all.
TEST_F(Fetcher, Crowds) {
  host_.add("/slow", [](const FakeRequest&, FakePeer& p) {
    p.wait(20);
    p.answer("200 OK", "", "picture");
  });
  start({.threads = 8});
  std::vector<ToldPtr> all;
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const auto told = std::make_shared<Told>();
    const bool ok =
        fetch(fmt::format("client {}", i % 17), {url("/a"), url("/slow"), url(i % 5 == 0 ? "/none" : "/a")}, told).ok();
    if (i % 7 == 0) told->gone = true;
    if (ok)
      all.push_back(told);
    else
      ++refused;
  }
  EXPECT_TRUE(
      eventually([&] { return std::ranges::all_of(all, [](const ToldPtr& t) { return t->any() || t->gone; }); }));
  EXPECT_EQ(std::ssize(all) + refused, 300);
  EXPECT_TRUE(eventually([&] { return registry_.gauge("quire:media_waiting_requests", "").value() == 0; }));
}

}  // namespace
}  // namespace quire::test
