#include "lab/divergence_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "command/display.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

constexpr double kWidth = 860, kHeight = 470;
constexpr double kLeft = 92, kRight = 836, kTop = 74, kBottom = 404;  // the plotting area, in pixels
constexpr const char* kMeanColour = "#1f5fa8";
constexpr const char* kP90Colour = "#d2691e";

std::string xml_text(const std::string& text) {
  std::string out;
  for (const char c : escaped(text, 160)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

bool drawable(double kl) {
  return kl > 0.0 && std::isfinite(kl);
}

// Whole decades around the values; one decade around 1 when nothing can be drawn.
struct LogAxis {
  int low = 0, high = 1;  // powers of ten

  explicit LogAxis(std::span<const PositionBin> bins) {
    double least = INFINITY, most = 0.0;
    for (const PositionBin& b : bins)
      for (const double kl : {b.mean, b.p90})
        if (drawable(kl)) {
          least = std::min(least, kl);
          most = std::max(most, kl);
        }
    if (most == 0.0) return;
    // A dozen decades are enough to read; what lies below is cut off.
    high = static_cast<int>(std::ceil(std::log10(most)));
    low = std::max(static_cast<int>(std::floor(std::log10(least))), high - 12);
    if (low == high) --low;
  }
  double y(double kl) const {
    const double share = (std::log10(kl) - low) / (high - low);
    return kBottom - std::clamp(share, 0.0, 1.0) * (kBottom - kTop);
  }
};

struct PositionAxis {
  double last;

  double x(double position) const { return kLeft + (kRight - kLeft) * position / last; }
  // 1, 2 or 5 times a power of ten, for at most ten steps.
  double step() const {
    for (double unit = 1.0;; unit *= 10.0)
      for (const double m : {1.0, 2.0, 5.0})
        if (last <= unit * m * 10.0) return unit * m;
  }
};

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                     colour);
}

std::string label(double x, double y, const char* anchor, int size, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"#222\">{}</text>\n", x,
                     y, anchor, size, text);
}

std::string power_of_ten(int power) {
  if (power >= -3 && power <= 2) return fmt::format("{:.{}f}", std::pow(10.0, power), std::max(0, -power));
  return fmt::format("1e{}", power);
}

std::string value_axis(const LogAxis& axis) {
  std::string out;
  const int every = (axis.high - axis.low + 7) / 8;
  for (int power = axis.low; power <= axis.high; ++power) {
    const double y = axis.y(std::pow(10.0, power));
    out += line(kLeft, y, kRight, y, "#ccc");
    if ((power - axis.low) % every == 0) out += label(kLeft - 8, y + 4, "end", 12, power_of_ten(power));
    // Few decades leave room for what lies between them.
    if (power == axis.high || axis.high - axis.low > 3) continue;
    for (int digit = 2; digit < 10; ++digit) {
      const double between = axis.y(digit * std::pow(10.0, power));
      out += line(kLeft, between, kRight, between, "#eee");
    }
  }
  out += fmt::format(
      "<text transform=\"translate(24 {:.1f}) rotate(-90)\" text-anchor=\"middle\" font-size=\"13\" "
      "fill=\"#222\">KL(reference || model), nats per token</text>\n",
      (kTop + kBottom) / 2);
  return out;
}

std::string position_axis(const PositionAxis& axis) {
  std::string out;
  for (double p = 0.0; p <= axis.last; p += axis.step()) {
    out += line(axis.x(p), kBottom, axis.x(p), kBottom + 5, "#222");
    out += label(axis.x(p), kBottom + 20, "middle", 12, fmt::format("{:.0f}", p));
  }
  out += label((kLeft + kRight) / 2, kBottom + 44, "middle", 13,
               "position in the window, tokens before the predicted one");
  return out;
}

// One path; a gap where there is nothing to draw on a logarithmic axis. Points that stand alone get a dot.
std::string curve(std::span<const PositionBin> bins, double PositionBin::*value, const PositionAxis& across,
                  const LogAxis& up, const char* colour) {
  std::string path, dots;
  bool drawing = false;
  for (const PositionBin& b : bins) {
    if (!drawable(b.*value)) {
      drawing = false;
      continue;
    }
    const double x = across.x(static_cast<double>(b.first + b.last) / 2.0 + 1.0), y = up.y(b.*value);
    path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", x, y);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"{}\"/>\n", x, y, colour);
    drawing = true;
  }
  if (path.empty()) return {};
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n{}", path, colour, dots);
}

std::string legend(double x, const char* colour, const std::string& text) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"52\" width=\"14\" height=\"4\" fill=\"{}\"/>\n", x, colour) +
         label(x + 20, 58, "start", 12, text);
}

}  // namespace

std::string divergence_plot(std::span<const PositionBin> bins, const std::string& title, const std::string& subtitle) {
  const LogAxis up(bins);
  const PositionAxis across{bins.empty() ? 1.0 : static_cast<double>(bins.back().last) + 1.0};
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  out += label(kLeft, 24, "start", 16, xml_text(title));
  out += label(kLeft, 43, "start", 12, xml_text(subtitle));
  out += legend(kRight - 250, kMeanColour, "mean");
  out += legend(kRight - 170, kP90Colour, "90th percentile");
  out += value_axis(up) + position_axis(across);
  out += line(kLeft, kTop, kLeft, kBottom, "#222") + line(kLeft, kBottom, kRight, kBottom, "#222");
  const bool nothing =
      std::none_of(bins.begin(), bins.end(), [](const PositionBin& b) { return drawable(b.mean) || drawable(b.p90); });
  if (nothing)
    out += label((kLeft + kRight) / 2, (kTop + kBottom) / 2, "middle", 14,
                 "no position with a positive, finite divergence");
  out += curve(bins, &PositionBin::p90, across, up, kP90Colour);
  out += curve(bins, &PositionBin::mean, across, up, kMeanColour);
  return out + "</svg>\n";
}

}  // namespace quire::cli
