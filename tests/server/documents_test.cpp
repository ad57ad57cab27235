// docs/server-api.md and the page say of parameters and routes what their rows say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
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
  static const std::regex kInput("<input type=\"number\"([^>]*) data-setting=\"([a-z_]+)\">");
  std::map<std::string, std::string> ranges;  // by name: ` min="0" max="1"`
  for (std::sregex_iterator input(page.begin(), page.end(), kInput), none; input != none; ++input)
    ranges[(*input)[2]] = (*input)[1];
  int found = 0;
  for (const SamplingField& field : kSamplingFields) {
    const auto at = ranges.find(std::string(field.name));
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
  const std::string page = api_page();
  const size_t begin = page.find("|---|", page.find("## Routes")), end = page.find("\n\n", begin);
  static const std::regex kCell("\n\\| ([^|]*) \\|"), kRoute("`([A-Z]* ?)(/[^A-Z`]*)[^`]*`");
  const std::string table = page.substr(begin, end - begin);
  std::set<std::string> routes;
  for (std::sregex_iterator cell(table.begin(), table.end(), kCell), none; cell != none; ++cell) {
    const std::string text = (*cell)[1];
    std::string method;
    for (std::sregex_iterator route(text.begin(), text.end(), kRoute); route != none; ++route) {
      if ((*route)[1].length() > 0) method = (*route)[1];
      routes.insert(method + std::string((*route)[2]));
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
