// Pictures by URL whose hosts answer late, or never: who waits for them, and for how long.
#include "server/media_urls.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST_F(MediaUrls, EndInTime) {
  host_.add_silence("/silence");
  host_.add("/drip", [](const FakeRequest&, FakePeer& p) {
    p.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
    while (p.open) p.write("x"), p.wait(10);
  });
  host_.add("/extensions", [](const FakeRequest&, FakePeer& p) {  // always something to read, and no end of it
    p.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (p.open) p.write("1;" + std::string(50'000, 'x') + "\r\nx\r\n");
  });
  names_.add("hangs.example", {});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  serve({"127.0.0.1:" + host_.port(), "hangs.example"}, [&](DemoServer::Options& o) {
    o.api.media.timeout = std::chrono::milliseconds(300);
    o.api.media.look_up = [released](const std::string&, const std::string&) {
      while (!*released) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return hub::Lookup{};
    };
  });
  expect_400(host_.url("/silence"), "not all of it came in time");
  expect_400(host_.url("/drip"), "not all of it came in time");
  expect_400(host_.url("/extensions"), "not all of it came in time");
  expect_400("http://hangs.example/a.png", "its address was not found in time");
  EXPECT_EQ(fetches("failed"), 4);
  *released = true;
}

TEST_F(MediaUrls, ThatHangHoldUpNobodyElse) {
  host_.add_silence("/silence");
  serve_this_host([](DemoServer::Options& o) {
    o.api.pool.threads = 2;
    o.api.media.threads = 8;
  });
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    ASSERT_TRUE(
        clients.back()->send(post("/v1/chat/completions", body_with(Json::array({image_at(host_.url("/silence"))})))));
  }
  ASSERT_TRUE(eventually([&] { return host_.silent() == 4; })) << "half of the threads are one client's";
  ASSERT_TRUE(eventually([&] { return server_->metric("quire:media_waiting_requests") == 40; }));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(send("/v1/chat/completions", body_with("text")).status, 200);
  EXPECT_EQ(host_.silent(), 4);
  EXPECT_EQ(server_->metric("quire:media_waiting_requests"), 40);
  host_.release();  // "late" is no picture
  for (const auto& client : clients) EXPECT_EQ(client->receive().status, 400);
}

TEST_F(MediaUrls, WaitInBoundedNumbers) {
  host_.add_silence("/silence");
  serve_this_host([](DemoServer::Options& o) { o.api.media.max_waiting = 4; });
  const std::string request = post("/v1/chat/completions", body_with(Json::array({image_at(host_.url("/silence"))})));
  Client first(server_->port()), second(server_->port());
  first.send(request);
  second.send(request);
  ASSERT_TRUE(eventually([&] { return server_->metric("quire:media_waiting_requests") == 2; }));
  const Reply r = chat(host_.url("/a.png"));
  EXPECT_EQ(r.status, 429) << r.body;
  EXPECT_NE(r.header("Retry-After"), "");
  EXPECT_EQ(send("/v1/chat/completions", body_with("text")).status, 200);
  host_.release();
  EXPECT_EQ(first.receive().status, 400);
  EXPECT_EQ(second.receive().status, 400);
  EXPECT_EQ(chat(host_.url("/a.png")).status, 200);
}

TEST_F(MediaUrls, EndWithTheirClient) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  host_.add("/silence", [left](const FakeRequest&, FakePeer& p) {
    p.write("HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n");
    while (p.open) p.write("x"), p.wait(10);
    *left = true;
  });
  serve_this_host();
  {
    Client client(server_->port());
    client.send(post("/v1/chat/completions", body_with(Json::array({image_at(host_.url("/silence"))}))));
    ASSERT_TRUE(eventually([&] { return host_.asked("/silence") == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return left->load(); })) << "the connection to the host is closed";
  EXPECT_TRUE(eventually([&] { return server_->metric("quire:media_waiting_requests") == 0; }));
  EXPECT_EQ(fetches("given_up"), 1);
  EXPECT_EQ(requests(), 0u);
}

TEST_F(MediaUrls, EndWithTheirDeadlineAndTheServer) {
  host_.add_silence("/silence");
  serve_this_host([](DemoServer::Options& o) { o.api.request_timeout = std::chrono::milliseconds(200); });
  const Reply late = chat(host_.url("/silence"));
  EXPECT_EQ(late.status, 503) << late.body;
  EXPECT_THAT(late.body, HasSubstr("deadline_exceeded"));
  EXPECT_TRUE(eventually([&] { return server_->metric("quire:media_waiting_requests") == 0; }));
  serve_this_host();
  Client client(server_->port());
  client.send(post("/v1/chat/completions", body_with(Json::array({image_at(host_.url("/silence"))}))));
  ASSERT_TRUE(eventually([&] { return server_->metric("quire:media_waiting_requests") == 1; }));
  server_->api().forget();
  EXPECT_EQ(client.receive().status, 503);
}

}  // namespace
}  // namespace quire::test
