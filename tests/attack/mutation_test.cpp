// Damage to headers: every number, string and comment is found, and each damage does what its name says.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/host/errors.h"
#include "tests/attack/committed.h"
#include "tests/attack/mutation.h"
#include "validation/certificate/header_reader.h"

namespace outgrad::validation::gate {

using kernels::Random;

namespace {

size_t count(const std::vector<Site>& sites, Site::Kind kind) {
  return static_cast<size_t>(
      std::count_if(sites.begin(), sites.end(), [&](const Site& site) { return site.kind == kind; }));
}

// The reader of `check` has its own idea of what a header holds.
TEST(AttackMutation, EveryNumberIsAPlace) {
  for (const char* name : {"gelu_bf16", "gelu_f32_ulp", "silu_f32"}) {
    const std::string text = committed(name);
    const auto header = std::get<BackwardHeader>(parse_header(text, name));
    const std::vector<Site> sites = sites_of(text);
    EXPECT_EQ(count(sites, Site::Kind::coefficient), header.table.values.size()) << name;
    EXPECT_EQ(count(sites, Site::Kind::string), 5u) << name;
    // The includes' and banner's comments aside, every comment of the text.
    size_t comments = 0;
    for (size_t at = text.find("//"); at != std::string::npos; at = text.find("//", text.find('\n', at)))
      ++comments;
    EXPECT_EQ(count(sites, Site::Kind::comment), comments) << name;
    size_t constants = 0;
    for (size_t at = text.find("static constexpr "); at != std::string::npos;
         at = text.find("static constexpr ", at + 1))
      ++constants;
    EXPECT_EQ(count(sites, Site::Kind::real) + count(sites, Site::Kind::integer) +
                  count(sites, Site::Kind::boolean) + count(sites, Site::Kind::string),
              constants)
        << name;
  }
  const auto table = std::get<TableHeader>(parse_header(committed("gelu_e4m3_oracle"), "gelu_e4m3_oracle"));
  EXPECT_EQ(count(sites_of(committed("gelu_e4m3_oracle")), Site::Kind::entry), table.entries.size());
}

TEST(AttackMutation, AnUlpIsAnUlpOfTheConstantsType) {
  const std::string text = committed("gelu_bf16");
  const std::vector<Site> sites = sites_of(text);
  const auto old = std::get<BackwardHeader>(parse_header(text, "old"));
  Random random(1);
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].name != "kO" && sites[i].name != "kTMin") continue;
    const auto changed =
        std::get<BackwardHeader>(parse_header(mutant_of(text, sites, i, 0, text, random).text, "changed"));
    if (sites[i].name == "kO") {
      EXPECT_EQ(changed.storage.oracle, std::nextafter(old.storage.oracle, 1.0));
    } else {
      EXPECT_EQ(changed.t_min, std::nextafter(old.t_min, 1.0f));
    }
  }
}

// Three of the defects that the gate was made for, each by the hand of its own generator: a K too small, rows
// of the class ulp times 1.5, kO raised, a comment that swallows the next line.
TEST(AttackMutation, TheDefectsItWasMadeForAreWithinItsReach) {
  const std::string text = committed("gelu_bf16_ulp");
  const std::vector<Site> sites = sites_of(text);
  std::set<std::string> made;
  for (size_t i = 0; i < sites.size(); ++i)
    for (size_t damage = 0; damage < damages_of(sites[i].kind); ++damage)
      made.insert(sites[i].name + ": " + damage_name(sites[i].kind, damage));
  EXPECT_TRUE(made.contains("kK: a large factor"));
  EXPECT_TRUE(made.contains("row 140, word 2: a factor up"));
  EXPECT_TRUE(made.contains("kO: a factor up"));
  Random random(3);
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].kind != Site::Kind::comment) continue;
    EXPECT_NE(mutant_of(text, sites, i, 5, text, random).text.find("\\ \n"), std::string::npos);
    break;
  }
}

// Beside the same input another figure is wrong. Another input may be as bad a one, so it is `check` that has
// to look; a text that is no input is refused.
TEST(AttackMutation, OfWhatWasFoundAnotherFigureIsWrong) {
  const std::string text = committed("gelu_bf16");
  const std::vector<Site> sites = sites_of(text);
  constexpr size_t kAnotherNumber = 1;
  Random random(7);
  int figures = 0, inputs = 0;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].kind != Site::Kind::comment) continue;
    const size_t figure = text.find("; found 2^", sites[i].begin), input = text.find(" = ", figure);
    if (figure > sites[i].begin + sites[i].length) continue;
    for (int round = 0; round < 20; ++round) {
      const Mutant mutant = mutant_of(text, sites, i, kAnotherNumber, text, random);
      const auto changed = static_cast<size_t>(
          std::mismatch(text.begin(), text.end(), mutant.text.begin()).first - text.begin());
      if (changed > figure && changed < input) {
        ++figures;
        EXPECT_TRUE(mutant.refused_by_definition) << mutant.text.substr(figure, 50);
      } else if (changed > input) {
        bool is_header = true;
        try {
          parse_header(mutant.text, "h.h");
        } catch (const kernels::SpecError&) {
          is_header = false;
        }
        inputs += is_header;
        EXPECT_EQ(mutant.refused_by_definition, !is_header) << mutant.text.substr(figure, 50);
      }
    }
  }
  EXPECT_GT(figures, 50);
  EXPECT_GT(inputs, 50);
}

TEST(AttackMutation, APlanTakesEveryConstantAndThinsEvenly) {
  const std::vector<Site> sites = sites_of(committed("gelu_f32_ulp"));
  Random random(5);
  const auto all = plan(sites, 1, 0, random), some = plan(sites, 1, 700, random);
  EXPECT_EQ(some.size(), 700u);
  std::set<size_t> of_all, rows;
  for (const auto& [site, damage] : all) of_all.insert(site);
  EXPECT_EQ(of_all.size(), sites.size());
  for (const auto& [site, damage] : some) rows.insert(site * 8 / sites.size());
  EXPECT_EQ(rows.size(), 8u);
}

}  // namespace
}  // namespace outgrad::validation::gate
