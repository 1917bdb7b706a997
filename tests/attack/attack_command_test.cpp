// `attack --merge`: of several machines' results, none may be missing.
#include <nlohmann/json.hpp>

#include "kernels/support/json_node.h"
#include "tests/attack/commands.h"
#include "tests/refusal.h"
#include "tests/validation/command_fixture.h"

namespace outgrad::validation {
namespace {

class AttackCommand : public CommandTest {
 protected:
  AttackCommand() : CommandTest("attack", add_attack) {}
};

// Two headers by two machines, each with a few mutants of one.
TEST_F(AttackCommand, MergesAllShardsOrNone) {
  const std::string generated = OUTGRAD_SOURCE_DIR "/kernels/generated/";
  for (const char* shard : {"1/2", "2/2"}) {
    EXPECT_EQ(
        run({"--headers", generated + "gelu_e4m3_oracle.h", generated + "gelu_e5m2_oracle.h", "--only", "kO",
             "--mutations", "3", "--specifications", "0", "--shard", shard, "--out", file(shard)}),
        kernels::kExitHolds);
  }
  const std::string one = file("1/2"), two = file("2/2"), out = file("out");
  EXPECT_EQ(refusal_of([&] { run({"--merge", two, "--out", out}); }),
            "attack: --merge: 'header gelu_e4m3_oracle' is done in none of the files: a shard is missing, or "
            "was interrupted");
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(run({"--merge", one, two, "--out", out}), kernels::kExitHolds);
  EXPECT_EQ(kernels::read_json(out)["mutations"]["by_header"].keys().size(), 2u);
  EXPECT_EQ(run({"--merge", out}), kernels::kExitHolds);
}

// A typing error in --only would otherwise pass as a gate that nothing survived.
TEST_F(AttackCommand, DamagesSomethingOrSaysWhyNot) {
  const std::string header = OUTGRAD_SOURCE_DIR "/kernels/generated/gelu_e4m3_oracle.h";
  EXPECT_EQ(refusal_of([&] {
              run({"--headers", header, "--only", "kOO", "--specifications", "0", "--out", file("out")});
            }),
            "attack: --only: no place or kind of damage is called 'kOO' in these headers");
  EXPECT_FALSE(std::filesystem::exists(file("out")));
}

// A block of specifications that is there already is one of this fitter and this program.
TEST_F(AttackCommand, AnotherFittersResultsAreNotKept) {
  const auto refused_because = [&](const std::string& reason) {
    kernels::write_file(file("fitter"), "#!/bin/sh\necho 'outgrad: " + reason + "' >&2\nexit 2\n");
    std::filesystem::permissions(file("fitter"), std::filesystem::perms::owner_all);
    EXPECT_EQ(run({"--mutations", "0", "--specifications", "1", "--stores", "0", "--fitter", file("fitter"),
                   "--out", file("out")}),
              kernels::kExitHolds);
    return kernels::read_file(file("out"));
  };
  const std::string first = refused_because("a kink");
  EXPECT_NE(first.find("a kink"), std::string::npos) << first;
  EXPECT_EQ(refused_because("a kink"), first);
  const std::string second = refused_because("a pole");
  EXPECT_NE(second.find("a pole"), std::string::npos) << second;
}

// What a merge has no use for.
TEST_F(AttackCommand, MergesWithoutOptionsOfWork) {
  for (const char* option : {"--size=full", "--mutations=3", "--specifications=3", "--stores=3", "--passes=2",
                             "--only=kO", "--headers=x", "--shard=1/2", "--fitter=x", "--fresh"})
    EXPECT_NE(refusal_of([&] { run({"--merge", file("a"), option}); }).find("excludes"), std::string::npos)
        << option;
}

}  // namespace
}  // namespace outgrad::validation
