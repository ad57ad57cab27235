#include "cli/snapshot/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/escape.h"

namespace quire::cli::snapshot {
namespace {

// A chart is as wide as a phone, so that its letters need not shrink there; on a wide page several stand side by side.
constexpr double kWidth = 340, kHeight = 210, kLeft = 46, kRight = 328, kTop = 14, kBottom = 168;
constexpr size_t kColours = 5;  // .c0 ... of page.css

// 1, 2 or 5 times a power of ten, so that at most five steps reach `most`.
double step_for(double most) {
  const double raw = std::max(most, 1e-12) / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (raw <= m * power) return m * power;
  return 10 * power;
}

struct Axes {
  double low_x, high_x, high_y;
  bool log_x;

  double x(double value) const {
    const auto place = [this](double v) { return log_x ? std::log2(v) : v; };
    const double width = place(high_x) - place(low_x);
    return width > 0 ? kLeft + (kRight - kLeft) * (place(value) - place(low_x)) / width : (kLeft + kRight) / 2;
  }
  double y(double value) const { return kBottom - (kBottom - kTop) * value / high_y; }
};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor, html(text));
}

std::string grid(const Axes& axes, const std::vector<ChartLine>& lines) {
  std::string out;
  const double step = step_for(axes.high_y);
  for (double v = 0; v <= axes.high_y * 1.001; v += step) {
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                       axes.y(v), kRight, axes.y(v));
    out += text_at(kLeft - 5, axes.y(v) + 4, "end", short_number(v));
  }
  if (axes.log_x) {
    for (const ChartPoint& p : lines.front().points)
      out += text_at(axes.x(p.x), kBottom + 16, "middle", short_number(p.x));
    return out;
  }
  const double step_x = step_for(axes.high_x - axes.low_x);
  for (double v = 0; v <= axes.high_x * 1.001; v += step_x)
    if (v >= axes.low_x) out += text_at(axes.x(v), kBottom + 16, "middle", short_number(v));
  return out;
}

}  // namespace

std::string html(std::string_view text) {
  std::string out;
  for (const char c : escaped(text, 0)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string short_bytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t u = 0;
  while (bytes >= 1000 && u + 1 < std::size(units)) bytes /= 1000, ++u;
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 && u > 0 ? 1 : 0, units[u]);
}

std::string short_number(double v) {
  if (v >= 1e6) return fmt::format("{:.3g}M", v / 1e6);
  if (v >= 1e4) return fmt::format("{:.3g}k", v / 1e3);
  return v >= 100 ? fmt::format("{:.0f}", v) : fmt::format("{:.3g}", v);
}

std::string line_chart(const std::vector<ChartLine>& given, const ChartOptions& o) {
  std::vector<ChartLine> lines;
  for (const ChartLine& l : given)
    if (!l.points.empty()) lines.push_back(l);
  if (lines.empty()) return {};
  std::sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.points.size() > b.points.size(); });
  Axes axes{INFINITY, -INFINITY, 0, o.log_x};
  for (const ChartLine& l : lines)
    for (const ChartPoint& p : l.points) {
      axes.low_x = std::min(axes.low_x, p.x);
      axes.high_x = std::max(axes.high_x, p.x);
      axes.high_y = std::max(axes.high_y, p.y);
    }
  const double step = step_for(axes.high_y);
  axes.high_y = std::max(step, std::ceil(axes.high_y / step) * step);
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">",
      html(o.title), kWidth, kHeight, html(o.title));
  out += grid(axes, lines);
  out += text_at((kLeft + kRight) / 2, kBottom + 34, "middle", fmt::format("{} · {}", o.y_name, o.x_name));
  std::string legend;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t colour = i % kColours;
    std::string points;
    for (const ChartPoint& p : lines[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", axes.x(p.x), axes.y(p.y));
      if (o.dots || lines[i].points.size() == 1)
        out += fmt::format("<circle class=\"fill c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", colour, axes.x(p.x),
                           axes.y(p.y));
    }
    out += fmt::format("<polyline class=\"line c{}\" points=\"{}\"/>", colour, points);
    if (lines.size() > 1)
      legend += fmt::format("<span class=\"key\"><i class=\"c{}\"></i>{}</span>", colour, html(lines[i].name));
  }
  out += "</svg>";
  if (!legend.empty()) out += "<div class=\"legend\">" + legend + "</div>";
  return out + "</figure>\n";
}

std::string bar_chart(const std::vector<ChartBar>& bars, const std::string& title) {
  if (bars.empty()) return {};
  double longest = 0;
  for (const ChartBar& b : bars) longest = std::max(longest, b.length);
  constexpr double kRow = 30;
  const double height = kRow * static_cast<double>(bars.size()) + 4;
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">",
      html(title), kWidth, height, html(title));
  double y = 0;
  for (const ChartBar& b : bars) {
    const double width = longest > 0 ? std::max(1.0, (kWidth - 4) * b.length / longest) : 1;
    out += text_at(2, y + 13, "start", b.name) + text_at(kWidth - 2, y + 13, "end", b.value);
    out += fmt::format("<rect class=\"fill c0\" x=\"2\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"8\" rx=\"2\"/>", y + 18,
                       width);
    y += kRow;
  }
  return out + "</svg></figure>\n";
}

std::string strip(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double middle = (*low + *high) / 2;
  // The strip is a tenth to either side of the middle, or as much as it takes.
  const double reach = std::max({0.1 * std::abs(middle), *high - middle, 1e-12});
  std::string out =
      "<svg class=\"strip\" viewBox=\"0 0 120 14\" aria-hidden=\"true\">"
      "<line class=\"grid\" x1=\"2\" y1=\"7\" x2=\"118\" y2=\"7\"/>";
  for (const double v : values)
    out += fmt::format("<circle class=\"fill c0\" cx=\"{:.1f}\" cy=\"7\" r=\"2.5\"/>",
                       60 + 56 * std::clamp((v - middle) / reach, -1.0, 1.0));
  return out + "</svg>";
}

}  // namespace quire::cli::snapshot
