// The plot is well-formed XML whatever it is given, and shows what can be shown.
#include "lab/divergence_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// Elements nest, attributes are quoted, text holds no bare & or <. Empty if so, else what is wrong.
std::string malformed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const std::string rest = xml.substr(at, 6);
      bool known = false;
      for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;"}) known |= rest.starts_with(entity);
      if (!known) return "a bare & at " + std::to_string(at);
    }
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == xml.npos) return "an open tag at " + std::to_string(at);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != tag.npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0) return tag;
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" />", 1) - (tag[0] == '/'));
    at = end + 1;
    if (tag[0] == '?') continue;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

TEST(Malformed, SeesMistakes) {
  EXPECT_EQ(malformed("<a><b x=\"1\"/>t &amp; u</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a x=\"1></a>", "<a>x & y</a>", "<a><b</a>"})
    EXPECT_NE(malformed(bad), "") << bad;
}

std::vector<PositionBin> falling(int64_t bins) {
  std::vector<PositionBin> out;
  for (int64_t i = 0; i < bins; ++i) {
    const double kl = 0.02 / static_cast<double>(i + 1);
    out.push_back({i * 8, i * 8 + 7, kl, kl * 3});
  }
  return out;
}

TEST(DivergencePlot, HasAxesCurvesAndLabels) {
  const std::string svg = divergence_plot(falling(64), "q8_0 from bf16", "text");
  EXPECT_EQ(malformed(svg), "");
  for (const char* part : {"<svg xmlns=\"http://www.w3.org/2000/svg\"", "nats per token", "position in the window",
                           ">90th percentile<", ">mean<", ">q8_0 from bf16<", ">0.1<", ">0.01<", ">500<"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf<")));
  size_t paths = 0;
  for (size_t at = svg.find("<path"); at != svg.npos; at = svg.find("<path", at + 1)) ++paths;
  EXPECT_EQ(paths, 2u);
}

TEST(DivergencePlot, AnyValues) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<PositionBin> cases[] = {{},
                                            {{0, 0, 0.0, 0.0}},
                                            {{0, 0, 1.0, 1.0}},
                                            {{0, 0, 0.1, 0.1}},
                                            {{0, 3, 0.5, kInf}, {4, 7, 0.0, 0.0}, {8, 8, kInf, 1e-300}},
                                            {{0, 1000000, 1e-18, 1e-3}}};
  for (const auto& bins : cases) {
    const std::string svg = divergence_plot(bins, "t", "s");
    EXPECT_EQ(malformed(svg), "");
    for (const char* bad : {"nan", "\"inf", " inf"}) EXPECT_THAT(svg, Not(HasSubstr(bad)));
  }
  EXPECT_THAT(divergence_plot(cases[1], "t", "s"), HasSubstr("no position with a positive"));
}

TEST(DivergencePlot, NamesAreEscaped) {
  const std::string svg = divergence_plot(falling(2), "<b>&\"'\x1b[2J\xff", "a<\n");
  EXPECT_EQ(malformed(svg), "");
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;&quot;'\\u001b[2J\uFFFD"));
}

}  // namespace
}  // namespace quire::cli
