#include "cli/snapshot/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/display.h"
#include "cli/snapshot/charts.h"
#include "cli/snapshot/statistics.h"

namespace quire::cli {

extern const std::string_view kSnapshotStyle;  // cmake/embed.cmake makes it of page.css

namespace snapshot {
namespace {

// Cells are markup already: html() has been through what is text.
std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                  size_t texts = 1) {
  const auto cell = [&](const char* tag, size_t i, const std::string& content) {
    return fmt::format("<{}{}>{}</{}>", tag, i < texts ? "" : " class=\"number\"", content, tag);
  };
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (size_t i = 0; i < head.size(); ++i) out += cell("th", i, html(head[i]));
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) out += cell("td", i, row[i]);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string section(const char* title, const std::string& content) {
  return content.empty() ? "" : fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, content);
}

std::string grid(const std::string& figures) {
  return figures.empty() ? "" : "<div class=\"charts\">" + figures + "</div>\n";
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f}", seconds * 1e3, seconds < 0.01 ? 2 : seconds < 1 ? 1 : 0);
}

// ---- Sections ----

std::string heading(const Snapshot& s) {
  const int failed = s.count(GateResult::kFailed), passed = s.count(GateResult::kPassed);
  std::string out = fmt::format(
      "<header><p class=\"brand\">quire snapshot</p><h1>{}</h1><p class=\"soft\">{} · {} · {} · {} threads · took "
      "{:.0f} "
      "s{}</p>",
      html(s.model.empty() ? "no model" : s.model), html(s.program), html(s.time), html(s.device), s.threads, s.seconds,
      s.quick ? " · quick" : "");
  if (!s.fingerprint.empty()) out += fmt::format("<p class=\"soft mono\">{}</p>", html(s.fingerprint));
  out += fmt::format("<p class=\"verdict {}\">{}</p>", failed > 0 ? "failed" : "passed",
                     failed > 0 ? fmt::format("{} of {} gates failed", failed, failed + passed)
                                : fmt::format("{} gates passed, {} skipped", passed, s.count(GateResult::kSkipped)));
  return out + "</header>\n";
}

std::string gates(const Snapshot& s) {
  std::vector<std::vector<std::string>> rows;
  for (const Gate& g : s.gates)
    rows.push_back({fmt::format("<span class=\"badge {0}\">{0}</span>", gate_result_name(g.result)), html(g.name),
                    html(g.what), html(g.detail)});
  return table({"", "gate", "what it demands", "what was found"}, rows, 4);
}

std::string headline(const Snapshot& s) {
  std::string out;
  const auto tile = [&](const std::string& name, const std::string& value, const std::string& unit) {
    out += fmt::format("<div class=\"tile\"><b>{}</b> <span>{}</span><p>{}</p></div>", html(value), html(unit),
                       html(name));
  };
  for (const Figure& f : s.figures)
    if (f.name.starts_with("pp") || f.name.starts_with("tg"))
      tile(f.name.starts_with("pp") ? "prompt, one sequence (" + f.name + ")"
                                    : "generation, one sequence (" + f.name + ")",
           fmt::format("{:.1f}", trimmed_mean(f.values())), f.unit);
  const Figure* widest = nullptr;
  for (const Figure& f : s.figures)
    if (f.name.starts_with("npl") && f.name.ends_with("decode")) widest = &f;
  if (widest != nullptr) tile(widest->name, fmt::format("{:.1f}", trimmed_mean(widest->values())), widest->unit);
  if (!s.loads.empty())
    tile("first token over HTTP, " + s.loads.front().summary.load + ", p50",
         milliseconds(s.loads.front().summary.ttft.p50), "ms");
  if (s.quality.perplexity > 0)
    tile("perplexity of " + s.quality.text, fmt::format("{:.4f}", s.quality.perplexity), "");
  return out.empty() ? "" : "<div class=\"tiles\">" + out + "</div>\n";
}

std::string speeds(const Snapshot& s) {
  ChartLine prompts{.name = "prompts"}, decode{.name = "decode"};
  std::vector<std::vector<std::string>> rows;
  for (const Figure& f : s.figures) {
    const std::vector<double> values = f.values();
    const double middle = trimmed_mean(values);
    const bool time = f.unit == "s";
    rows.push_back(
        {html(f.name), time ? milliseconds(middle) : fmt::format("{:.1f}", middle), time ? "ms" : html(f.unit),
         values.size() < 2 || middle == 0 ? "-" : fmt::format("{:.1f}%", 100 * standard_deviation(values) / middle),
         strip(values)});
    if (!f.name.starts_with("npl")) continue;
    const double sequences = std::atof(f.name.c_str() + 3);
    (f.name.ends_with("decode") ? decode : prompts).points.push_back({sequences, middle});
  }
  if (rows.empty()) return {};
  const ChartOptions o{.x_name = "sequences at once", .y_name = "tokens/s", .log_x = true};
  ChartOptions of_decode = o, of_prompts = o;
  of_decode.title = "Generation, many sequences";
  of_prompts.title = "Prompts, many sequences";
  std::string charts;
  if (decode.points.size() > 1) charts = line_chart({decode}, of_decode) + line_chart({prompts}, of_prompts);
  return grid(charts) + table({"figure", "value", "unit", "deviation", "readings, ±10% or all"}, rows);
}

std::string served(const Snapshot& s) {
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, std::pair<ChartLine, ChartLine>> lines;  // first token, throughput
  for (const ServedLoad& l : s.loads) {
    const server::LoadSummary& m = l.summary;
    const auto spread = [](const server::Spread& x) {
      return x.count == 0 ? std::string("-")
                          : fmt::format("{} / {} / {}", milliseconds(x.p50), milliseconds(x.p90), milliseconds(x.p99));
    };
    rows.push_back({html(l.server), html(m.load), fmt::format("{}", m.requests), fmt::format("{}", m.errors),
                    fmt::format("{:.1f}", m.decode_rate()), spread(m.ttft), spread(m.itl)});
    const double clients = std::atof(m.load.c_str());
    auto& [ttft, rate] = lines[l.server];
    ttft.name = rate.name = l.server;
    if (m.ttft.count > 0) ttft.points.push_back({clients, m.ttft.p50 * 1e3});
    rate.points.push_back({clients, m.decode_rate()});
  }
  if (rows.empty()) return {};
  std::vector<ChartLine> ttft, rate;
  for (const auto& [name, both] : lines) {
    ttft.push_back(both.first);
    rate.push_back(both.second);
  }
  const auto named = [](const char* title, const char* unit) {
    return ChartOptions{.title = title, .x_name = "clients at once", .y_name = unit, .log_x = true};
  };
  return grid(line_chart(rate, named("Tokens over HTTP", "tokens/s")) +
              line_chart(ttft, named("Time to first token, p50", "ms"))) +
         table(
             {"server", "load", "requests", "errors", "tokens/s", "TTFT ms p50 / p90 / p99", "ITL ms p50 / p90 / p99"},
             rows, 2);
}

std::string buckets(const Snapshot& s) {
  if (s.buckets.empty())
    return s.buckets_missing.empty() ? "" : fmt::format("<p class=\"soft\">{}</p>\n", html(s.buckets_missing));
  std::string out;
  std::vector<std::string> phases;
  for (const Bucket& b : s.buckets)
    if (std::find(phases.begin(), phases.end(), b.phase) == phases.end()) phases.push_back(b.phase);
  for (const std::string& phase : phases) {
    std::vector<Bucket> of;
    double total = 0;
    for (const Bucket& b : s.buckets)
      if (b.phase == phase) of.push_back(b), total += b.seconds;
    std::sort(of.begin(), of.end(), [](const Bucket& a, const Bucket& b) { return a.seconds > b.seconds; });
    std::vector<ChartBar> bars;
    for (const Bucket& b : of) {
      std::string value =
          fmt::format("{:.0f}%, {} ms", total > 0 ? 100 * b.seconds / total : 0, milliseconds(b.seconds));
      if (b.bytes > 0 && b.seconds > 0)
        value += fmt::format(", {}/s", short_bytes(static_cast<double>(b.bytes) / b.seconds));
      bars.push_back({b.op, value, b.seconds});
    }
    out += bar_chart(bars, fmt::format("{}: {} ms", phase, milliseconds(total)));
  }
  return grid(out);
}

std::string memory(const Snapshot& s) {
  ChartLine resident{.name = "resident"}, gpu{.name = "GPU, in use by anybody"};
  for (const MemorySample& m : s.memory) {
    resident.points.push_back({m.seconds, static_cast<double>(m.resident) / 1e6});
    if (m.gpu_used > 0) gpu.points.push_back({m.seconds, static_cast<double>(m.gpu_used) / 1e6});
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < s.memory.size(); ++i) {
    const MemorySample& m = s.memory[i];
    if (i > 0 && s.memory[i - 1].stage == m.stage) continue;
    int64_t most = 0;
    for (const MemorySample& x : s.memory)
      if (x.stage == m.stage) most = std::max(most, x.resident);
    rows.push_back({html(m.stage), fmt::format("{:.1f} s", m.seconds), short_bytes(static_cast<double>(m.resident)),
                    short_bytes(static_cast<double>(most))});
  }
  if (rows.empty()) return {};
  const ChartOptions o{.title = "Memory of the process", .x_name = "seconds", .y_name = "MB", .dots = false};
  return grid(line_chart({resident}, o) +
              line_chart({gpu}, {.title = "Memory of the GPU", .x_name = "seconds", .y_name = "MB", .dots = false})) +
         table({"stage", "began", "resident", "at most"}, rows);
}

std::string quality(const Snapshot& s) {
  const Quality& q = s.quality;
  if (q.text.empty()) return {};
  std::vector<std::vector<std::string>> rows = {{"text", html(q.text)},
                                                {"windows", fmt::format("{} of {} tokens", q.windows, q.window)},
                                                {"perplexity", fmt::format("{:.6f}", q.perplexity)}};
  if (!q.reference.empty()) {
    rows.push_back({"reference", html(q.reference)});
    rows.push_back({"its perplexity", fmt::format("{:.6f}", q.reference_perplexity)});
    rows.push_back({"KL(reference || model), mean", fmt::format("{:.3g}", q.kl_mean)});
    rows.push_back({"99th percentile", fmt::format("{:.3g}", q.kl_p99)});
    rows.push_back({"same likeliest token", fmt::format("{:.2f}%", 100 * q.top1_agreement)});
  }
  return table({"", ""}, rows, 2);
}

std::string bytes_text(int64_t bytes, const char* none) {
  return bytes > 0 ? human_bytes(static_cast<uint64_t>(bytes)) : none;
}

std::string hardware(const Snapshot& s) {
  const Hardware& h = s.hardware;
  std::string caches;
  for (const CacheLevel& c : h.caches)
    caches += fmt::format("{}{} {} x {} KiB", caches.empty() ? "" : ", ", c.name, c.count, c.bytes / 1024);
  std::vector<std::vector<std::string>> rows = {
      {"CPU", html(h.cpu)},
      {"instructions", html(h.cpu_features)},
      {"CPUs",
       fmt::format("{}, of which {} may be used; load {:.2f} when it began", h.cpus, h.usable_cpus, h.load_average)},
      {"caches", html(caches.empty() ? "not told" : caches)},
      {"memory", html(fmt::format("{}, {} available", bytes_text(h.memory, "not told"),
                                  bytes_text(h.available_memory, "not told")))},
      {"control groups",
       html(fmt::format("memory {}, CPUs {}", bytes_text(h.group_memory_limit, "without limit"),
                        h.group_cpu_quota > 0 ? fmt::format("{:.2f}", h.group_cpu_quota) : "without limit"))},
      {"reads memory with", html(short_bytes(h.read_bandwidth) + "/s")},
      {"bf16 peak", fmt::format("{:.2f} TFLOP/s", h.bf16_peak * 1e-12)},
      {"system", html(h.system)}};
  for (const Gpu& g : h.gpus) {
    std::string text =
        fmt::format("{}, compute capability {}, {} multiprocessors, {}, copies {}/s", g.name, g.capability,
                    g.multiprocessors, bytes_text(g.memory, "?"), short_bytes(g.copy_bandwidth));
    for (const auto& [what, value] : {std::pair{"driver ", g.driver},
                                      {"power limit ", g.power_limit},
                                      {"", g.link},
                                      {"NVLink ", g.links},
                                      {"cannot be used: ", g.unusable}})
      if (!value.empty()) text += fmt::format(", {}{}", what, value);
    rows.push_back({"GPU", html(text)});
  }
  if (h.gpus.empty()) rows.push_back({"GPU", html(h.no_gpu)});
  return table({"", ""}, rows, 2);
}

std::string conformance(const Snapshot& s) {
  struct Total {
    int passed = 0, failed = 0;
    std::string kernels, skipped;
  };
  std::vector<std::pair<std::string, Total>> ops;
  for (const ConformanceCount& c : s.conformance) {
    if (ops.empty() || ops.back().first != c.op) ops.emplace_back(c.op, Total{});
    Total& t = ops.back().second;
    t.passed += c.passed;
    t.failed += c.failed;
    std::string& list = c.skipped.empty() ? t.kernels : t.skipped;
    list += (list.empty() ? "" : ", ") + c.kernel;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [op, t] : ops)
    rows.push_back({html(op), html(t.kernels), html(t.skipped), fmt::format("{}/{}", t.passed, t.passed + t.failed)});
  if (rows.empty()) return {};
  return "<details><summary>Checks of each operator</summary>" +
         table({"operator", "kernels", "not for this machine", "passed"}, rows, 3) + "</details>\n";
}

}  // namespace

std::string snapshot_page(const Snapshot& s) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>quire snapshot: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
      html(s.model), kSnapshotStyle);
  out += heading(s) + headline(s);
  out += section("Gates", gates(s) + conformance(s));
  out += section("Speed", speeds(s));
  out += section("Over HTTP", served(s));
  out += section("Where the time goes", buckets(s));
  out += section("Quality", quality(s));
  out += section("Memory", memory(s));
  out += section("Machine", hardware(s));
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace snapshot
}  // namespace quire::cli
