// What comes as text from command lines and hubs: names, paths, URLs, lists of files, kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "core/loopback.h"
#include "gguf/mmproj_name.h"
#include "hub/choose.h"
#include "hub/model_name.h"
#include "hub/remote_gguf.h"
#include "hub/repository.h"
#include "hub/url.h"

namespace quire::hub {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HubNames, AreParsed) {
  const auto name = ModelName::parse("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", "v1");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->id, "Qwen/Qwen3-4B-GGUF");
  EXPECT_EQ(name->choice, "Q4_K_M");
  EXPECT_EQ(name->revision, "v1");
  EXPECT_FALSE(name->names_file());
  EXPECT_EQ(name->folder(), "models--Qwen--Qwen3-4B-GGUF");
  EXPECT_EQ(ModelName::parse("gpt2")->folder(), "models--gpt2");
  EXPECT_TRUE(ModelName::parse("a/b:sub/x.gguf")->names_file());
  for (const char* bad : {"", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a b/c", "a/b:", "a/b:../x.gguf", "a--b/c",
                          "a/b:/etc/passwd", "-a/b", "a/b.", "a/b\n", "a/b:x\ny"})
    EXPECT_FALSE(ModelName::parse(bad).ok()) << bad;
  for (const char* bad : {"../x", "", "a//b", "/x", "a\\b"}) EXPECT_FALSE(ModelName::parse("a/b", bad).ok()) << bad;
  EXPECT_TRUE(ModelName::parse("a/b", "refs/pr/1").ok());
}

TEST(HubNames, WithoutTheirPrefixAndShort) {
  for (const char* name : {"Qwen/Qwen3-4B-GGUF", "Qwen/Qwen3-4B-GGUF:Q4_K_M", "a/b:sub/x.gguf"})
    EXPECT_TRUE(looks_like_hub_name(name)) << name;
  for (const char* path : {"gpt2", "a/b/c", "/a/b", "./a", "../a", "models/m.gguf", "a b/c", "a/", "~/m", ""})
    EXPECT_FALSE(looks_like_hub_name(path)) << path;
  const std::vector<std::string> ids = {"Qwen/Qwen3-4B-GGUF", "Qwen/Qwen3-4B-Instruct-2507-GGUF", "other/qwen3-8b",
                                        "more/Qwen3-8B", "gpt2"};
  EXPECT_THAT(ids_called("qwen3-4b", ids), ElementsAre("Qwen/Qwen3-4B-GGUF"));
  EXPECT_THAT(ids_called("qwen3:4b", ids), ElementsAre("Qwen/Qwen3-4B-GGUF"));
  EXPECT_THAT(ids_called("QWEN3-4B-GGUF", ids), ElementsAre("Qwen/Qwen3-4B-GGUF"));
  EXPECT_THAT(ids_called("qwen3-4b-instruct", ids), ElementsAre("Qwen/Qwen3-4B-Instruct-2507-GGUF"));
  EXPECT_THAT(ids_called("qwen3-8b", ids), ElementsAre("other/qwen3-8b", "more/Qwen3-8B"));
  EXPECT_THAT(ids_called("gpt2", ids), ElementsAre("gpt2"));
  for (const char* none : {"", "qwen", "4b", "qwen3-4", "/"}) EXPECT_THAT(ids_called(none, ids), ElementsAre()) << none;
}

TEST(HubNames, PathsStayInTheirFolder) {
  for (const char* good : {"a", "a/b.gguf", "..a", "a..", "\xc3\xa4/b c.gguf", "...", ".gitattributes"})
    EXPECT_TRUE(check_path(good).ok()) << good;
  for (const char* bad :
       {"", ".", "..", "a/..", "../a", "a/../b", "/a", "a/", "a//b", "a/./b", "a\nb", "a\x7f", "a\\b", "\xff", "a\tb"})
    EXPECT_FALSE(check_path(bad).ok()) << bad;
  EXPECT_FALSE(check_path(std::string("a\0b", 3)).ok());
  EXPECT_FALSE(check_path(std::string(300, 'a')).ok());
}

TEST(HubUrls, AreParsedAndJoined) {
  const auto url = Url::parse("HTTPS://Example.org:8443/a/b?c=d#e");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->text(), "https://example.org:8443/a/b?c=d");
  EXPECT_EQ(url->join("/x")->text(), "https://example.org:8443/x");
  EXPECT_EQ(url->join("x")->text(), "https://example.org:8443/a/x");
  EXPECT_EQ(url->join("//other/x")->text(), "https://other/x");
  EXPECT_EQ(url->join("http://other:80/x?u=https://y/")->text(), "http://other/x?u=https://y/");
  EXPECT_EQ(Url::parse("http://[::1]:80")->text(), "http://[::1]/");
  for (const char* bad : {"", "ftp://x/", "https://", "https://a b/", "https://a/\r\nX: y", "https://u@h/",
                          "https://h:x/", "https://h:123456/", "https://[::1/", "/path", "https://h\xc3\xa4/"})
    EXPECT_FALSE(Url::parse(bad).ok()) << bad;
  EXPECT_FALSE(url->join("").ok() && url->join("")->target.empty());
  EXPECT_EQ(percent_encoded("a b/\xc3\xa4?#"), "a%20b/%C3%A4%3F%23");
}

constexpr char kList[] = R"({"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [)";

TEST(HubLists, AreParsed) {
  const auto r = parse_repository(std::string(kList) + R"({"rfilename": "b.gguf", "size": 5,
    "lfs": {"sha256": ")" + std::string(64, 'a') +
                                  R"(", "size": 7}}, {"rfilename": "a", "blobId": ")" + std::string(40, 'b') +
                                  R"(", "size": 3}, {"rfilename": "c"}]})");
  ASSERT_TRUE(r.ok()) << r.error().message;
  ASSERT_EQ(r->files.size(), 3u);
  EXPECT_EQ(r->files[0].path, "a");
  EXPECT_EQ(r->files[0].hash, std::string(40, 'b'));
  EXPECT_EQ(r->find("b.gguf")->bytes, 7u);
  EXPECT_EQ(r->find("b.gguf")->hash, std::string(64, 'a'));
  EXPECT_EQ(r->find("c")->hash, "");
  EXPECT_EQ(r->find("d"), nullptr);
}

TEST(HubLists, HostileOnesAreRefused) {
  const auto refused = [](const std::string& text, const char* why) {
    const auto r = parse_repository(text);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_THAT(r.error().message, HasSubstr(why));
  };
  refused("<html><body>Sign in", "page for browsers");
  refused("", "not valid JSON");
  refused("[]", "no JSON object");
  refused("{}", "\"sha\"");
  refused(R"({"sha": "../../../etc", "siblings": []})", "\"sha\"");
  refused(R"({"sha": "0123456789abcdef0123456789abcdef01234567"})", "\"siblings\"");
  for (const char* path : {"../x", "/etc/passwd", "a/../../b", "", "a\\nb", "a\\u0000b"})
    refused(std::string(kList) + R"({"rfilename": ")" + path + "\"}]}", "cannot be one");
  refused(std::string(kList) + "7]}", "cannot be one");
  refused(std::string(kList) + R"({"rfilename": "a"}, {"rfilename": "a"}]})", "twice");
  refused(std::string(100, '['), "nested");
  EXPECT_FALSE(parse_safetensors_index(R"({"weight_map": {"a": "../b"}})").ok());
  EXPECT_FALSE(parse_safetensors_index(R"({"weight_map": {"a": 1}})").ok());
  EXPECT_FALSE(parse_safetensors_index("{}").ok());
  EXPECT_THAT(*parse_safetensors_index(R"({"weight_map": {"x": "b", "y": "a", "z": "b"}})"), ElementsAre("a", "b"));
}

// Lists of 200,000 files, as a hub may send them, take seconds and not the square of their length. Processor time: what
// else runs on the machine does not count.
class HubSizes : public ::testing::Test {
 protected:
  static constexpr int kFiles = 200'000;
  static std::string name(int i) { return fmt::format("model-{:06}.safetensors", i); }
  void TearDown() override { EXPECT_LT(static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC, 25.0); }
  const std::clock_t begin_ = std::clock();
};

TEST_F(HubSizes, AnIndexOfManyTensorsAndFiles) {
  std::string index = R"({"weight_map": {)";
  std::vector<NamedFile> listed;
  for (int i = 0; i < kFiles; ++i) {
    index += fmt::format("{}\"t{}\":\"{}\"", i > 0 ? "," : "", i, name(i));
    listed.push_back({name(i), 1});
  }
  const auto weights = parse_safetensors_index(index + "}}");
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  std::vector<Variant> variants = variants_of(listed);
  ASSERT_EQ(variants.size(), 1u);
  ASSERT_TRUE(keep_weights(variants[0], *weights).ok());
  EXPECT_EQ(variants[0].files.size(), static_cast<size_t>(kFiles));
}

TEST_F(HubSizes, ManyFilesOfOneKind) {
  std::vector<NamedFile> listed;
  for (int i = 0; i < kFiles; ++i) listed.push_back({fmt::format("m{:06}-Q4_K_M.gguf", i), 1});
  const Result<Choice> choice = choose(variants_of(listed), *ModelName::parse("hf:a/b:Q4_K_M"), {.bytes = 1 << 30});
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("several files of kind Q4_K_M"));
}

TEST(HubLists, AnIndexKeepsWhatItNames) {
  Variant folder{.files = {"a.safetensors", "b.safetensors", "config.json"}, .folder = true};
  const std::vector<std::string> one = {"b.safetensors"}, missing = {"b.safetensors", "c.safetensors"};
  ASSERT_TRUE(keep_weights(folder, one).ok());
  EXPECT_THAT(folder.files, ElementsAre("b.safetensors", "config.json"));
  EXPECT_THAT(keep_weights(folder, missing).error().message, HasSubstr("names 'c.safetensors', which is not there"));
}

TEST(HubUrls, OnlyThisMachineIsThisMachine) {
  for (const char* here : {"http://localhost", "http://LOCALHOST:80/x", "http://127.0.0.1:8080", "http://127.255.0.3",
                           "http://[::1]:80", "http://[0:0:0:0:0:0:0:1]"})
    EXPECT_TRUE(is_this_machine(Url::parse(here)->host)) << here;
  for (const char* other : {"http://127.evil.example", "http://127.0.0.1.evil.example", "http://127.1", "http://127.",
                            "http://127.0.0.256", "http://localhost.evil.example", "http://localhost.",
                            "http://128.0.0.1", "http://[::2]", "http://[::ffff:127.0.0.1]", "http://0x7f.0.0.1"})
    EXPECT_FALSE(is_this_machine(Url::parse(other)->host)) << other;
}

TEST(HubLists, EtagsAreHashesOrNothing) {
  const std::string sha(64, 'c'), git(40, 'd');
  EXPECT_EQ(hash_of_etag("\"" + sha + "\""), sha);
  EXPECT_EQ(hash_of_etag("W/\"" + git + "\""), git);
  for (const char* none : {"", "\"\"", "../../x", "\"abc\"", "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\""})
    EXPECT_EQ(hash_of_etag(none), "") << none;
}

TEST(HubKinds, AreReadFromNames) {
  EXPECT_EQ(kind_of("Qwen3-4B-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(kind_of("qwen3-4b-q4_k_m.gguf"), "Q4_K_M");
  EXPECT_EQ(kind_of("model.Q8_0.gguf"), "Q8_0");
  EXPECT_EQ(kind_of("Model-UD-Q4_K_XL.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(kind_of("gpt-oss-20b-MXFP4.gguf"), "MXFP4");
  EXPECT_EQ(kind_of("m-IQ2_XXS.gguf"), "IQ2_XXS");
  EXPECT_EQ(kind_of("BF16/model-00001-of-00002.gguf"), "BF16");
  EXPECT_EQ(kind_of("model_Q4_0.gguf"), "Q4_0");
  EXPECT_EQ(kind_of("model.gguf"), "");
}

std::vector<Variant> several() {
  return variants_of(std::vector<NamedFile>{{"m-BF16-00001-of-00002.gguf", 8'000'000'000},
                                            {"m-BF16-00002-of-00002.gguf", 8'000'000'000},
                                            {"m-IQ1_S.gguf", 2'000'000'000},
                                            {"m-Q2_K.gguf", 3'000'000'000},
                                            {"m-Q4_K_M.gguf", 5'000'000'000},
                                            {"m-Q8_0.gguf", 9'000'000'000},
                                            {"mmproj-m-F16.gguf", 1'000'000'000}});
}

TEST(HubChoice, TakesTheFirstThatFits) {
  const auto pick = [](const std::string& name, int64_t gigabytes, bool gpu = false) {
    const auto choice = choose(several(), *ModelName::parse(name), {"a machine", gigabytes * 1'000'000'000, gpu});
    return choice.ok() ? choice->variant.kind : choice.error().message;
  };
  EXPECT_EQ(pick("a/b", 64), "Q4_K_M");
  EXPECT_EQ(pick("a/b", 7), "Q4_K_M");
  EXPECT_EQ(pick("a/b", 6), "Q2_K") << "Q4_K_M would, without its tower";
  EXPECT_THAT(pick("a/b", 2), HasSubstr("the smallest is Q2_K"));
  EXPECT_EQ(pick("a/b:q8_0", 2), "Q8_0");
  EXPECT_EQ(pick("a/b:IQ1_S", 64), "IQ1_S");
  EXPECT_EQ(pick("a/b:BF16", 64), "BF16");
  EXPECT_EQ(pick("a/b:m-Q2_K.gguf", 64), "Q2_K");
  EXPECT_THAT(pick("a/b:Q5_0", 64), HasSubstr("a/b has no Q5_0; there is BF16 (16.0 GB)"));
  EXPECT_EQ(several().size(), 5u);
  EXPECT_THAT(several()[0].files, ElementsAre("m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"));
}

TEST(HubChoice, ATowerComesWithGgufFiles) {
  for (const Variant& v : several()) EXPECT_EQ(v.mmproj.path, "mmproj-m-F16.gguf") << v.kind;
  EXPECT_EQ(several()[0].all_bytes(), 17'000'000'000u);
  const auto best = [](std::vector<std::string> paths) {
    const std::optional<size_t> i = gguf::best_mmproj(paths);
    return i ? paths[*i] : "none";
  };
  EXPECT_EQ(best({"mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"}), "mmproj-BF16.gguf");
  EXPECT_EQ(best({"m.gguf", "m.mmproj-Q8_0.gguf", "m.mmproj-f16.gguf"}), "m.mmproj-f16.gguf");
  EXPECT_EQ(best({"mmproj-b.gguf", "mmproj-a.gguf"}), "mmproj-a.gguf");
  EXPECT_EQ(best({"m.gguf", "mmproj.json"}), "none");
  EXPECT_EQ(best({}), "none");
}

TEST(HubChoice, SaysWhatIsIncomplete) {
  const auto variants = variants_of(std::vector<NamedFile>{{"m-Q4_K_M-00001-of-00003.gguf", 5}});
  const auto choice = choose(variants, *ModelName::parse("a/b"), {"", 1 << 30, false});
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("2 parts of Q4_K_M are missing"));
}

TEST(HubChoice, FoldersAreConfigTokenizerAndWeights) {
  const auto variants = variants_of(std::vector<NamedFile>{{"README.md", 1},
                                                           {"config.json", 1},
                                                           {"consolidated.safetensors", 9},
                                                           {"model-00001-of-00001.safetensors", 7},
                                                           {"original/x.safetensors", 9},
                                                           {"tokenizer.json", 1}});
  ASSERT_EQ(variants.size(), 1u);
  EXPECT_THAT(variants[0].files, ElementsAre("config.json", "model-00001-of-00001.safetensors", "tokenizer.json"));
  EXPECT_EQ(variants[0].bytes, 9u);
  EXPECT_TRUE(variants[0].folder);
}

TEST(HubHeaders, DamagedOnesAreRefusedOrWantMore) {
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  EXPECT_FALSE(gguf_header_bytes(bytes(std::string(64, 'x'))).ok());
  std::string head("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 24);
  const auto more = gguf_header_bytes(bytes(head));
  ASSERT_TRUE(more.ok());
  EXPECT_FALSE(*more);
  head += std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);  // a key of 2^63 bytes
  EXPECT_FALSE(gguf_header_bytes(bytes(head)).ok());
}

}  // namespace
}  // namespace quire::hub
