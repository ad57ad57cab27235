// Pictures that requests name by URL: what every API makes of them, from where they are fetched, and what becomes of
// answers that are too large or wrong.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/media_urls.h"
#include "support/tls_pair.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(MediaUrls, AreFetchedForEveryApi) {
  serve_this_host();
  const std::string url = host_.url("/a.png"), data = picture_url("png-rgb");
  const auto texts = [](const std::string& u) {
    return Json::array({{{"type", "text"}, {"text", "what"}}, image_at(u)});
  };
  const auto block = [](const std::string& u) {
    return Json{{"type", "image"}, {"source", {{"type", "url"}, {"url", u}}}};
  };
  const auto chat = [&](const std::string& u) { return body_with(texts(u)); };
  const auto messages = [&](const std::string& u) {
    return Json{{"max_tokens", 9}, {"messages", {{{"role", "user"}, {"content", {block(u)}}}}}};
  };
  const auto responses = [&](const std::string& u) {
    return Json{{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", u}}}}}}}};
  };
  const auto ollama = [&](const std::string& u) {
    return Json{{"stream", false}, {"messages", {{{"role", "user"}, {"content", "what"}, {"images", {u}}}}}};
  };
  const auto generate = [&](const std::string& u) {
    return Json{{"stream", false}, {"prompt", "what"}, {"images", {u}}};
  };
  using Body = std::function<Json(const std::string&)>;
  for (const auto& [path, body] : std::vector<std::pair<const char*, Body>>{{"/v1/chat/completions", chat},
                                                                            {"/v1/messages", messages},
                                                                            {"/v1/responses", responses},
                                                                            {"/api/chat", ollama},
                                                                            {"/api/generate", generate}}) {
    ASSERT_EQ(send(path, body(data)).status, 200) << path;
    const Request wanted = service_->requests().back();
    const int before = host_.asked("/a.png");
    const Reply r = send(path, body(url));
    ASSERT_EQ(r.status, 200) << path << r.body;
    const Request got = service_->requests().back();
    EXPECT_TRUE(std::ranges::equal(got.prompt, wanted.prompt)) << path;
    ASSERT_NE(got.images, nullptr) << path;
    EXPECT_EQ((*got.images)[0].digest, (*wanted.images)[0].digest) << path;
    EXPECT_EQ(host_.asked("/a.png"), before + 1) << path;
  }
  for (const auto& [path, body] :
       std::vector<std::pair<const char*, Body>>{{"/tokenize", chat}, {"/v1/messages/count_tokens", messages}}) {
    const Reply counted = ask(server_->port(), post(path, body(url)));
    EXPECT_EQ(counted.status, 200) << counted.body;
    EXPECT_EQ(counted.body, ask(server_->port(), post(path, body(data))).body);
  }
  const Json rendered = ask(server_->port(), post("/v1/chat/completions/render", chat(url))).json();
  EXPECT_EQ(rendered["token_ids"],
            ask(server_->port(), post("/v1/chat/completions/render", chat(data))).json()["token_ids"]);
  const FakeRequest seen = host_.seen().back();
  EXPECT_EQ(seen.method, "GET");
  EXPECT_EQ(seen.headers.at("host"), "127.0.0.1:" + host_.port());
  EXPECT_FALSE(seen.headers.contains("authorization"));
  EXPECT_FALSE(seen.headers.contains("cookie"));
}

TEST_F(MediaUrls, AreFetchedOnceAsOftenAsTheyStand) {
  host_.add_file("/b.jpg", picture_file("jpeg-420"));
  serve_this_host();
  const std::string a = host_.url("/a.png?key=1"), b = host_.url("/b.jpg");
  const Reply r = send("/v1/chat/completions",
                       body_with({image_at(a), image_at(picture_url("gif-plain")), image_at(b), image_at(a)}));
  ASSERT_EQ(r.status, 200) << r.body;
  const auto images = service_->requests().back().images;
  ASSERT_EQ(images->size(), 4u);
  EXPECT_EQ((*images)[0].digest, (*images)[3].digest);
  EXPECT_NE((*images)[0].digest, (*images)[2].digest);
  EXPECT_EQ(host_.asked("/a.png?key=1"), 1);
  EXPECT_EQ(host_.asked(), 2);
  EXPECT_EQ(fetches("fetched"), 2);
  EXPECT_EQ(fetches("failed"), 0);
  EXPECT_EQ(server_->metric("quire:media_waiting_requests"), 0);
  EXPECT_EQ(server_->metric("quire:media_fetched_bytes_total"),
            static_cast<double>(picture_file("png-rgb").size() + picture_file("jpeg-420").size()));
}

TEST_F(MediaUrls, AreRefusedUnlessTheyAreListed) {
  serve({});
  expect_400(host_.url("/a.png"), "--allowed-media-domains", "'messages[0].content[0].image_url.url'");
  expect_400("https://example.org/a.png", "--allowed-media-domains");
  expect_400("file:///etc/passwd", "--allowed-local-media-path");
  expect_400("ftp://example.org/a.png", "is a URL of 'ftp:'");
  serve({"127.0.0.1:1", "example.org"});
  expect_400(host_.url("/a.png"), "fetches no pictures from http://127.0.0.1:" + host_.port());
  expect_400(host_.url("/a.png", "localhost"), "fetches no pictures from");
  expect_400("http://user:secret@example.org/a.png", "names a user");
  expect_400("http://example.org:22/a.png", "fetches no pictures from");
  EXPECT_EQ(host_.asked(), 0);
  EXPECT_EQ(names_.asked(), 0);
  EXPECT_EQ(requests(), 0u);
}

TEST_F(MediaUrls, OptionsAreRefusedByName) {
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 ";
  expect_refused(serve + "--allowed-media-domains images.example.org,https://example.org/",
                 "'https://example.org/': it is a URL");
  expect_refused(serve + "--allowed-media-domains a.example 127.1", "'127.1': it ends in a number");
  expect_refused(serve + "--allowed-local-media-path " + path("none"), "--allowed-local-media-path");
  expect_refused(serve + "--media-ca " + path("none"), "--allowed-media-domains lists hosts");
  expect_refused(serve + "--allowed-media-domains a.example --media-ca " + path("none"), "--media-ca");
}

TEST_F(MediaUrls, RedirectsAreJudgedAnew) {
  serve_this_host();
  host_.add_redirect("/1", "/a.png");
  host_.add_redirect("/2", host_.url("/1"), "301 Moved");
  host_.add_redirect("/3", "2", "307 Temporary Redirect");
  host_.add_redirect("/4", "/3");
  host_.add_redirect("/loop", "/loop");
  for (const char* const path : {"/1", "/2", "/3"}) {
    const Reply r = chat(host_.url(path));
    EXPECT_EQ(r.status, 200) << path << r.body;
  }
  expect_400(host_.url("/4"), "redirects more than 3 times");
  expect_400(host_.url("/loop"), "redirects more than 3 times");
  const int before = host_.asked();
  int hops = 0;
  for (const std::string& to :
       {"http://127.0.0.1:" + host_.other_port() + "/a.png", std::string("http://169.254.169.254/latest/meta-data"),
        std::string("http://localhost:") + host_.port() + "/a.png", std::string("//internal.example/a.png"),
        std::string("http://10.1.2.3/")}) {
    host_.add_redirect("/away", to);
    const Reply r = chat(host_.url("/away"));
    EXPECT_EQ(r.status, 400) << to;
    EXPECT_THAT(r.error(), HasSubstr("redirects to a host or port that --allowed-media-domains does not list")) << to;
    EXPECT_THAT(r.error(), Not(HasSubstr("internal.example"))) << "where it leads is nobody's business";
    EXPECT_THAT(r.error(), Not(HasSubstr("169.254"))) << to;
    ++hops;
  }
  for (const std::string& to : {std::string("file:///etc/passwd"), std::string("ftp://127.0.0.1/"),
                                "http://u@127.0.0.1:" + host_.port() + "/a.png"}) {
    host_.add_redirect("/away", to);
    expect_400(host_.url("/away"), "no URL that can be fetched");
    ++hops;
  }
  host_.add("/nowhere", [](const FakeRequest&, FakePeer& p) { p.answer("302 Found", "", ""); });
  expect_400(host_.url("/nowhere"), "no URL that can be fetched");
  EXPECT_EQ(host_.asked() - host_.asked("/nowhere"), before + hops) << "nothing beyond the redirects was asked for";
  for (const FakeRequest& r : host_.seen()) EXPECT_FALSE(r.cdn);
}

TEST_F(MediaUrls, HttpsIsCheckedAndNeverLeft) {
  write_tls_pair(path("key"), path("cert"));
  PictureHost secure(path("key"), path("cert"));
  secure.add_file("/a.png", picture_file("png-rgb"));
  secure.add_redirect("/down", host_.url("/a.png"));
  host_.add_redirect("/up", secure.url("/a.png"));
  names_.add("pictures.example", {{"127.0.0.1"}});
  const auto trusting = [&](const std::string& ca) {
    return [&, ca](DemoServer::Options& o) { o.api.media.tls = *hub::TlsContext::create(ca, "--media-ca"); };
  };
  const std::vector<std::string> all = {"127.0.0.1:" + host_.port(), "localhost:" + secure.port(),
                                        "pictures.example:" + secure.port()};
  serve(all, trusting(path("cert")));
  for (const std::string& url : {secure.url("/a.png"), secure.url("/a.png", "localhost"), host_.url("/up")}) {
    const Reply r = chat(url);
    EXPECT_EQ(r.status, 200) << url << r.body;
  }
  expect_400(secure.url("/down"), "redirects from https to http");
  expect_400(secure.url("/a.png", "pictures.example"), "its certificate is not trusted");
  const int before = secure.asked();
  serve(all, trusting(""));
  expect_400(secure.url("/a.png"), "its certificate is not trusted");
  EXPECT_EQ(secure.asked(), before);
  EXPECT_EQ(host_.asked("/a.png"), 0);
}

TEST_F(MediaUrls, NamesLeadToPublicAndListedAddressesAlone) {
  const std::string port = host_.port();
  const std::vector<std::string> listed = {"pictures.example:" + port};
  serve(listed);
  for (const FakeNames::Addresses& addresses : std::vector<FakeNames::Addresses>{{"127.0.0.1"},
                                                                                 {"::1"},
                                                                                 {"::ffff:127.0.0.1"},
                                                                                 {"10.0.0.1"},
                                                                                 {"169.254.169.254"},
                                                                                 {"0.0.0.0"},
                                                                                 {"fd00:ec2::254"},
                                                                                 {"64:ff9b::7f00:1"},
                                                                                 {"8.8.8.8", "127.0.0.1"}}) {
    names_.add("pictures.example", {addresses});
    expect_400(host_.url("/a.png", "pictures.example"), "its name leads to an address that is not public");
  }
  names_.add("pictures.example", {});
  expect_400(host_.url("/a.png", "pictures.example"), "there is no address of this name");
  EXPECT_EQ(host_.asked(), 0);
  // What is listed may be led to. The name is asked for once: what was judged is what is connected to, whatever the
  // name says a moment later.
  serve({"pictures.example:" + port, "127.0.0.1"});  // at another port
  names_.add("pictures.example", {{"127.0.0.1"}});
  expect_400(host_.url("/a.png", "pictures.example"), "its name leads to an address that is not public");
  names_.add("pictures.example", {{"127.0.0.1"}, {"10.0.0.1"}});
  serve({"pictures.example:" + port, "127.0.0.1:" + port});
  const int before = names_.asked();
  const Reply r = chat(host_.url("/a.png", "pictures.example"));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(names_.asked(), before + 1);
  EXPECT_EQ(host_.seen().back().headers.at("host"), "pictures.example:" + port);
  expect_400(host_.url("/a.png", "pictures.example"), "its name leads to an address that is not public");
  // Likewise behind a redirect.
  names_.add("pictures.example", {{"127.0.0.1"}, {"10.0.0.1"}});
  host_.add_redirect("/again", host_.url("/a.png", "pictures.example"));
  expect_400(host_.url("/again", "pictures.example"), "its name leads to an address that is not public");
}

TEST_F(MediaUrls, AnswersOfAnyKindAreTold) {
  const std::string garbage(100'000, 'x');
  const auto raw = [](const std::string& bytes) {
    return [bytes](const FakeRequest&, FakePeer& peer) { peer.write(bytes); };
  };
  host_.add("/500", [](const FakeRequest&, FakePeer& p) { p.answer("500 Internal Server Error", "", "secret"); });
  host_.add("/204", raw("HTTP/1.1 204 No Content\r\n\r\n"));
  host_.add("/206", [](const FakeRequest&, FakePeer& p) { p.answer("206 Partial Content", "", "x"); });
  host_.add_file("/gzip", "x", "Content-Encoding: gzip\r\n");
  host_.add_file("/html", "<html>no picture</html>", "Content-Type: text/html\r\n");
  host_.add_file("/empty", "");
  host_.add("/garbage", raw(garbage + "\r\n\r\n"));
  host_.add("/head", raw("HTTP/1.1 200 OK\r\nA: " + garbage + "\r\n\r\n"));
  host_.add("/silent", raw(""));
  host_.add("/cut", raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"));
  host_.add("/chunk", raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"));
  std::string interim;
  for (int i = 0; i < 10; ++i) interim += "HTTP/1.1 100 Continue\r\n\r\n";
  host_.add("/interim", raw(interim));
  serve_this_host([](DemoServer::Options& o) { o.limits.image.max_bytes = 2000; });
  for (const auto& [path, words] : {std::pair{"/404", "it answers with status 404"},
                                    {"/500", "it answers with status 500"},
                                    {"/204", "it answers with status 204"},
                                    {"/206", "it answers with status 206"},
                                    {"/gzip", "its answer is compressed"},
                                    {"/html", "'messages[0].content[0]': "},
                                    {"/empty", "'messages[0].content[0]': "},
                                    {"/garbage", "it"},
                                    {"/head", "its headers are too long"},
                                    {"/silent", "the connection was closed early"},
                                    {"/cut", "the connection was closed early"},
                                    {"/chunk", "its answer is not valid HTTP"},
                                    {"/interim", "it promises an answer again and again"}}) {
    const Reply r = chat(host_.url(path));
    EXPECT_EQ(r.status, 400) << path << r.body;
    EXPECT_THAT(r.error(), HasSubstr(words)) << path;
    EXPECT_THAT(r.body, Not(HasSubstr("secret"))) << path;
  }
  EXPECT_EQ(requests(), 0u);
  // In chunks, and to the end of the connection.
  const std::string file = picture_file("png-rgb");
  host_.add("/chunked", raw(fmt::format("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                                        file.size(), file)));
  host_.add("/to-end", raw("HTTP/1.0 200 OK\r\n\r\n" + file));
  host_.add("/continued",
            raw(fmt::format("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", file.size(),
                            file)));
  for (const char* const path : {"/chunked", "/to-end", "/continued"})
    EXPECT_EQ(chat(host_.url(path)).status, 200) << path;
}

TEST_F(MediaUrls, TakeSoMuchMemory) {
  const std::string file = picture_file("png-rgb");
  host_.add("/long",
            [](const FakeRequest&, FakePeer& p) { p.write("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"); });
  host_.add("/endless", [](const FakeRequest&, FakePeer& p) {
    p.write("HTTP/1.1 200 OK\r\n\r\n");
    while (p.open) p.write(std::string(10'000, 'x'));
  });
  serve_this_host([&](DemoServer::Options& o) { o.limits.image.max_bytes = file.size(); });
  EXPECT_EQ(chat(host_.url("/a.png")).status, 200);
  for (const char* const path : {"/long", "/endless"}) expect_400(host_.url(path), "(limit max_image_bytes)");
  serve_this_host([&](DemoServer::Options& o) { o.limits.image.max_bytes = file.size() - 1; });
  expect_400(host_.url("/a.png"), "(limit max_image_bytes)");
  const auto two = body_with({image_at(host_.url("/a.png?1")), image_at(host_.url("/a.png?2"))});
  serve_this_host([&](DemoServer::Options& o) { o.api.media.max_request_bytes = 2 * file.size() - 1; });
  const Reply r = send("/v1/chat/completions", two);
  EXPECT_EQ(r.status, 400) << r.body;
  EXPECT_THAT(r.error(), HasSubstr("(limit max_media_bytes)"));
  serve_this_host([&](DemoServer::Options& o) { o.api.media.max_total_bytes = 2 * file.size() - 1; });
  const Reply full = send("/v1/chat/completions", two);
  EXPECT_EQ(full.status, 503) << full.body;
  EXPECT_NE(full.header("Retry-After"), "");
  // What was fetched is given back.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(eventually([&] { return chat(host_.url("/a.png")).status == 200; }));
}

// As many fetches as hang, a text is answered: they hold no thread that reads requests.
// What an answer would have been told as an event is one, also where pictures had to come first.
TEST_F(MediaUrls, TooLongConversationsAreToldAsWithoutThem) {
  serve_this_host([](DemoServer::Options& o) { o.context = 48; });
  const auto body = [&](const std::string& url, bool stream) {
    Json content = Json::array({{{"type", "input_text"}, {"text", std::string(400, 'x')}}});
    content.push_back({{"type", "input_image"}, {"image_url", url}});
    return Json{{"stream", stream}, {"input", {{{"role", "user"}, {"content", content}}}}};
  };
  for (const bool stream : {false, true}) {
    const Reply with = send("/v1/responses", body(host_.url("/a.png"), stream));
    const Reply without = send("/v1/responses", body(picture_url("png-rgb"), stream));
    EXPECT_EQ(with.status, stream ? 200 : 400) << with.body;
    EXPECT_EQ(with.status, without.status);
    EXPECT_THAT(with.body, HasSubstr("context_length_exceeded"));
    EXPECT_THAT(without.body, HasSubstr("context_length_exceeded"));
  }
}

TEST_F(MediaUrls, FilesOfTheFolder) {
  namespace fs = std::filesystem;
  fs::create_directories(path("pictures/below"));
  fs::create_directories(path("elsewhere"));
  for (const char* const name : {"pictures/a b.png", "pictures/below/a.png", "elsewhere/a.png"})
    std::ofstream(path(name), std::ios::binary) << picture_file("png-rgb");
  std::ofstream(path("pictures/large"), std::ios::binary) << std::string(200'000, 'x');
  std::ofstream(path("pictures/text"), std::ios::binary) << "text";
  fs::create_symlink(path("elsewhere/a.png"), path("pictures/link.png"));
  fs::create_symlink(path("pictures/below/a.png"), path("pictures/inner.png"));
  fs::create_directory_symlink(path("elsewhere"), path("pictures/way"));
  ASSERT_EQ(mkfifo(path("pictures/pipe").c_str(), 0600), 0);
  serve(
      {}, [](DemoServer::Options& o) { o.limits.image.max_bytes = 100'000; }, path("pictures"));
  for (const char* const name : {"/a%20b.png", "/below/a.png"}) {
    const Reply r = chat("file://" + path("pictures") + name);
    EXPECT_EQ(r.status, 200) << name << r.body;
  }
  std::string one;
  for (const std::string& file :
       {path("pictures/none.png"), path("pictures/link.png"), path("pictures/inner.png"), path("pictures/way/a.png"),
        path("pictures/pipe"), path("pictures/below"), path("pictures/large"), path("pictures/text/a.png"),
        path("elsewhere/a.png"), path("elsewhere/none.png"), path("pictures/../elsewhere/a.png"),
        std::string("/etc/passwd"), std::string("/dev/zero")}) {
    const Reply r = chat("file://" + file);
    EXPECT_EQ(r.status, 400) << file;
    if (one.empty()) one = r.body;
    EXPECT_EQ(r.body, one) << file;
  }
  EXPECT_THAT(one, HasSubstr("the file cannot be read"));
  expect_400("file://" + path("pictures/text"), "'messages[0].content[0]': ");
  expect_400(host_.url("/a.png"), "--allowed-media-domains");
}

}  // namespace
}  // namespace quire::test
