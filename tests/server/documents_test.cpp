// docs/server-api.md and the page say of parameters and routes what their rows say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "ops/sampling/params.h"
#include "server/api.h"
#include "server/serve.h"
#include "support/golden.h"

namespace quire::test {
namespace {

using server::Api;
using testing::HasSubstr;

std::string api_page() {
  return read_whole_file(QUIRE_SOURCE_DIR "/docs/server-api.md");
}

TEST(Documents, HaveALineForEachSamplingField) {
  const std::string page = api_page();
  for (const SamplingField& field : kSamplingFields) {
    const std::string also = field.also.empty() ? "" : fmt::format(" (also `{}`)", field.also);
    EXPECT_THAT(page,
                HasSubstr(fmt::format("\n| `{}`{} | both | {}. {}", field.name, also, field.must_be(), field.help)))
        << field.name;
  }
}

TEST(Documents, ThePageLetsNobodyTypeWhatIsRefused) {
  const std::string page = read_whole_file(QUIRE_SOURCE_DIR "/src/server/page/page.html");
  std::map<std::string, std::string, std::less<>> ranges;  // by name: ` min="0" max="1" step="any"`
  const std::string input = "<input type=\"number\"", setting = " data-setting=\"";
  for (size_t at = page.find(input); at != std::string::npos; at = page.find(input, at + 1)) {
    const std::string tag = page.substr(at + input.size(), page.find('>', at) - at - input.size());
    const size_t named = tag.find(setting);
    ASSERT_NE(named, std::string::npos) << tag;
    const size_t name = named + setting.size();
    ranges[tag.substr(name, tag.find('"', name) - name)] = tag.substr(0, named);
  }
  int found = 0;
  for (const SamplingField& field : kSamplingFields) {
    const auto at = ranges.find(field.name);
    if (at == ranges.end()) continue;
    const std::string least = fmt::format(" min=\"{}\"", field.minus_one_is_zero ? -1 : field.low),
                      most = field.high < kAnyCount ? fmt::format(" max=\"{}\"", field.high) : "";
    EXPECT_THAT(at->second, testing::StartsWith(least + most + " step=")) << field.name;
    ++found;
  }
  EXPECT_GE(found, 7) << "the page's inputs were not found";
}

// The routes of the table: `GET /health`, `/ping` has the method of the one before. What stands in capitals is a name
// that a client gives.
std::set<std::string> documented_routes() {
  constexpr std::string_view kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::string page = api_page();
  const size_t begin = page.find("|---|", page.find("## Routes")), end = page.find("\n\n", begin);
  std::set<std::string> routes;
  for (size_t row = page.find("\n| ", begin); row < end; row = page.find("\n| ", row + 1)) {
    const std::string cell = page.substr(row + 3, page.find(" |", row + 3) - row - 3);
    std::string method;
    for (size_t at = cell.find('`'); at != std::string::npos;) {
      const size_t close = cell.find('`', at + 1);
      const std::string code = cell.substr(at + 1, close - at - 1);
      const size_t path = code.find('/');
      if (path != std::string::npos) {
        if (path > 0) method = code.substr(0, path);
        routes.insert(method + code.substr(path, std::min(code.find_first_of(kCapitals, path), code.size()) - path));
      }
      at = cell.find('`', close + 1);
    }
  }
  return routes;
}

TEST(Documents, NameTheRoutesThatThereAre) {
  std::set<std::string> rows;
  for (const Api::Route& r : Api::routes()) rows.insert(fmt::format("{} {}", r.method, r.path));
  EXPECT_EQ(documented_routes(), rows);
}

TEST(Documents, TheHelpNamesEveryRoute) {
  const std::string text = server::routes_text();
  for (const Api::Route& r : Api::routes()) EXPECT_THAT(text, HasSubstr(r.path)) << r.method;
  EXPECT_THAT(text, testing::StartsWith("GET /, /health, "));
}

}  // namespace
}  // namespace quire::test
