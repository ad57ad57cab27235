// A server that fetches pictures, a host that has some, and names that lead where a test says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/picture_host.h"
#include "server/picture_model.h"
#include "server/scripted_service.h"
#include "support/program.h"

namespace quire::test {

inline ModelPtr media_model() {
  static const ModelPtr model = picture_model();
  return model;
}

inline Json image_at(const std::string& url) {
  return {{"type", "image_url"}, {"image_url", {{"url", url}}}};
}
inline Json body_with(const Json& content) {
  return {{"messages", {{{"role", "user"}, {"content", content}}}}};
}

class MediaUrls : public ProgramTest {
 protected:
  MediaUrls() { host_.add_file("/a.png", picture_file("png-rgb")); }

  // Serves with what `edit` makes of the options, anew.
  void serve(const std::vector<std::string>& domains, const std::function<void(DemoServer::Options&)>& edit = {},
             const std::string& folder = "") {
    DemoServer::Options o;
    o.service = service_;
    o.loaded = media_model();
    o.limits.media = *server::MediaPolicy::create(domains, folder);
    o.api.media.look_up = names_.look_up();
    o.api.media.timeout = std::chrono::seconds(60);
    if (edit) edit(o);
    server_.reset();
    server_.emplace(std::move(o));
  }
  void serve_this_host(const std::function<void(DemoServer::Options&)>& edit = {}) {
    serve({"127.0.0.1:" + host_.port()}, edit);
  }
  Reply send(const char* path, const Json& body) {
    service_->will_answer({.texts = {"x"}});
    return ask(server_->port(), post(path, body));
  }
  Reply chat(const std::string& url) { return send("/v1/chat/completions", body_with(Json::array({image_at(url)}))); }
  void expect_400(const std::string& url, const std::string& words, const std::string& also = "'messages[0]") {
    const Reply r = chat(url);
    EXPECT_EQ(r.status, 400) << url << r.body;
    EXPECT_THAT(r.error(), testing::HasSubstr(words)) << url;
    EXPECT_THAT(r.error(), testing::HasSubstr(also)) << url;
  }
  size_t requests() const { return service_->requests().size(); }
  double fetches(const std::string& outcome) const {
    return server_->metric(fmt::format("quire:media_fetches_total{{outcome=\"{}\"}}", outcome));
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  FakeNames names_;
  PictureHost host_;
  std::optional<DemoServer> server_;
};

}  // namespace quire::test
