// Arguments, tables and JSON of `outgrad stability`.
#include "validation/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/support/bounds.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/lists.h"
#include "kernels/support/numbers.h"
#include "kernels/support/options.h"
#include "validation/norms/stability.h"
#include "validation/norms/tensors.h"

namespace outgrad::validation {

using kernels::SpecError;

namespace {

struct Arguments {
  std::string file;
  std::string gamma_name, beta_name;
  std::vector<std::string> gamma, beta;  // of numbers, with commas
  std::string norm = "auto";
  std::optional<float> weight_offset;
  std::string format = "bf16";
  StabilityOptions options;
  std::optional<float> scale;
  std::optional<double> tau;
  std::string out;
  kernels::ResultForm form;
  bool extract = false;
  std::vector<std::string> metadata;
  size_t worst = 10;
};

struct Layer {
  NormNames names;
  float weight_offset;  // gamma is this much more than the stored weights
  StabilityResult result;
};

constexpr const char* kMemorySharingLayer = "ms_layernorm";
constexpr const char* kMemorySharingRms = "ms_rmsnorm";

// MS-LN and MS-RMSNorm: the next linear layer has taken gamma and beta over, and keeps x^ (stores.h).
bool takes_no_gamma(const Arguments& arguments) {
  return arguments.norm == kMemorySharingLayer || arguments.norm == kMemorySharingRms;
}

Layer analyse(const Arguments& arguments, NormNames names, std::vector<float> gamma, std::vector<float> beta,
              float weight_offset, const std::string& label) {
  if (weight_offset != 0) {
    for (float& value : gamma) value += weight_offset;  // in fp32, as such a norm does
  }
  StabilityOptions options = arguments.options;
  if (takes_no_gamma(arguments)) gamma.assign(gamma.size(), 1.0f), beta.clear();
  // A norm without beta is an RMSNorm in nearly every published model.
  const bool centred = arguments.norm == "layernorm" || arguments.norm == kMemorySharingLayer ||
                       (arguments.norm == "auto" && !beta.empty());
  options.norm = centred ? Norm::layer : Norm::rms;
  StabilityResult result =
      analyse_stability(gamma, beta, options, label, names.gamma, names.beta.empty() ? "beta" : names.beta);
  return {std::move(names), weight_offset, std::move(result)};
}

// Norms of one kind, of which one line is said.
struct Mentioned {
  size_t count = 0;
  std::string first;
  void add(const std::string& name) {
    if (count++ == 0) first = name;
  }
  std::string text() const {
    return fmt::format("{} {} ({}{})", count, count == 1 ? "norm" : "norms",
                       count == 1 ? "" : "the first: ", first);
  }
};

// The model_type of the config.json beside a checkpoint, as transformers writes it; empty where there is
// none.
std::string model_type_beside(const std::string& file) {
  const std::filesystem::path path = std::filesystem::path(file).parent_path() / "config.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  const nlohmann::json config = kernels::parse_json_line(kernels::read_file(path.string()));
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  return config.is_object() && type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

std::vector<NormNames> chosen_norms(const Arguments& arguments, const TensorFile& file) {
  if (!arguments.gamma_name.empty()) {
    for (const std::string& name : {arguments.gamma_name, arguments.beta_name}) {
      if (!name.empty() && file.find(name).shape.size() != 1)
        throw SpecError(file.label(), name, "not one-dimensional");
    }
    NormNames chosen{arguments.gamma_name, arguments.gamma_name, arguments.beta_name};
    for (const NormNames& found : detect_norms(file)) {
      if (found.gamma == chosen.gamma)
        chosen.group = found.group, chosen.beside_convolution = found.beside_convolution;
    }
    return {chosen};
  }
  std::vector<NormNames> norms = detect_norms(file);
  if (norms.empty()) {
    throw SpecError(
        file.label(), "tensors",
        fmt::format("none of {} looks like a norm's gamma: give --gamma-name", file.tensors().size()));
  }
  return norms;
}

// One line about tensors that the reader does not know. None of them was needed, or its reading has refused
// it.
void say_unknown(const TensorFile& file) {
  constexpr size_t kShown = 5;
  std::vector<std::string> unknown;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.unknown.empty())
      unknown.push_back(fmt::format("{} ({})", tensor.name, tensor.unknown.substr(0, 60)));
  }
  if (unknown.empty()) return;
  const size_t more = unknown.size() - std::min(unknown.size(), kShown);
  unknown.resize(unknown.size() - more);
  kernels::print_error_line(fmt::format("{}: not read, because this reader does not know their types: {}{}",
                                        file.label(), fmt::join(unknown, ", "),
                                        more > 0 ? fmt::format(", and {} more", more) : ""));
}

// The numbers of "1,0.5" and "2".
std::vector<float> values_of(const char* option, const std::vector<std::string>& texts) {
  std::vector<float> values;
  for (const std::string& text : texts) {
    for (const std::string& word : kernels::parts_of(text)) {
      const auto value = kernels::number_in<double>(word);
      if (!value) throw SpecError("stability", option, "'" + word + "' is not a number");
      values.push_back(static_cast<float>(*value));
    }
  }
  return values;
}

std::vector<Layer> analyse_all(const Arguments& arguments) {
  if (arguments.file.empty()) {
    return {analyse(arguments, {"given", "gamma", arguments.beta.empty() ? "" : "beta"},
                    values_of("--gamma", arguments.gamma), values_of("--beta", arguments.beta),
                    arguments.weight_offset.value_or(0), "stability")};
  }
  const auto file = open_tensors(arguments.file);
  const std::string model_type = model_type_beside(arguments.file);
  const bool chosen = !arguments.gamma_name.empty();
  std::vector<Layer> layers;
  Mentioned group, beside_convolution, offset, doubtful;
  for (NormNames& names : chosen_norms(arguments, *file)) {
    if (names.group) group.add(names.name);
    if (names.group && !chosen) continue;
    if (names.beside_convolution && !names.group) beside_convolution.add(names.name);
    const std::vector<float> gamma = file->read(file->find(names.gamma));
    const std::vector<float> beta =
        names.beta.empty() ? std::vector<float>{} : file->read(file->find(names.beta));
    if (!names.beta.empty() && beta.empty()) throw SpecError(file->label(), names.beta, "has no elements");
    std::optional<float> known = arguments.weight_offset;
    if (takes_no_gamma(arguments)) {
      known = 0;  // whatever the checkpoint's norm does with its weights
    } else if (!known) {
      known = known_weight_offset(*file, names, model_type);
      if (known) offset.add(names.name);
      if (!known && around_zero(gamma)) doubtful.add(names.name);
    }
    layers.push_back(analyse(arguments, std::move(names), gamma, beta, known.value_or(0), file->label()));
  }
  if (layers.empty())
    throw SpecError(
        file->label(), group.text(),
        "GroupNorm by name, and there is nothing else: the bounds are those of LayerNorm and RMSNorm");
  const auto say = [&](const Mentioned& norms, const std::string& what) {
    if (norms.count > 0)
      kernels::print_error_line(fmt::format("{}: {}: {}", file->label(), norms.text(), what));
  };
  say(group, chosen ? "GroupNorm by name, analysed as if each row were normalised by itself"
                    : "GroupNorm by name, left out: the bounds are not about it");
  say(beside_convolution,
      "beside a convolution, analysed as LayerNorm or RMSNorm; if it is a GroupNorm, the bounds are not "
      "about it");
  say(offset, "analysed with gamma = 1 + w, as this model multiplies (--weight-offset 0: with gamma = w)");
  say(doubtful,
      "most weights are around 0, analysed with gamma = w; a norm that multiplies by 1 + w needs "
      "--weight-offset 1 "
      "(--weight-offset 0: it does not)");
  say_unknown(*file);
  return layers;
}

nlohmann::json document(const Arguments& arguments, const std::vector<Layer>& layers) {
  nlohmann::json norms = nlohmann::json::array();
  for (const Layer& layer : layers) {
    nlohmann::json norm = to_json(layer.result);
    norm["name"] = layer.names.name;
    norm["gamma_name"] = layer.names.gamma;
    norm["beta_name"] = layer.names.beta;
    if (layer.weight_offset != 0) norm["weight_offset"] = layer.weight_offset;
    norms.push_back(std::move(norm));
  }
  return {{"schema", "outgrad.stability/1"},
          {"source", arguments.file},
          {"options", to_json(arguments.options)},
          {"norms", norms}};
}

// A long name keeps its end, which distinguishes layers.
std::string shortened(const std::string& name, size_t width) {
  return name.size() <= width ? name : ".." + name.substr(name.size() - (width - 2));
}

double three_up(double bound) { return kernels::digits_up(bound, 3); }

void print_tables(const Arguments& arguments, const std::vector<Layer>& layers) {
  constexpr size_t kNameWidth = 40;
  const StabilityOptions& options = arguments.options;
  fmt::print(
      "Norm gradients from the stored output: y in {}, |mean| rstd <= {:g}, |dy| <= {:g}, eps = {:g}; "
      "unstable beyond tau = {:g}\n\n",
      options.format.name, options.mean_ratio, options.dy_max, options.eps, options.tau);
  fmt::print("{:<{}} {:>5} {:>6} {:>5} {:>5} {:>4} {:>8} {:>8} {:>8} {:>9} {:>10} {:>9} {:>11}\n", "layer",
             kNameWidth, "N", "stable", "degr", "unst", "g=0", "rho 50%", "rho 99%", "rho max", "dx, y",
             "dx, policy", "dgamma~", "side B/row");
  size_t channels = 0, side = 0;
  double least_x = largest_x(1), bytes = 0;
  std::vector<std::pair<const Layer*, size_t>> worst;
  for (const Layer& layer : layers) {
    const StabilityResult& r = layer.result;
    fmt::print(
        "{:<{}} {:>5} {:>6} {:>5} {:>5} {:>4} {:>8.3g} {:>8.3g} {:>8.3g} {:>9.2e} {:>10.2e} {:>9.2e} "
        "{:>11}\n",
        shortened(layer.names.name, kNameWidth), kNameWidth, r.channels.size(), r.count[0], r.count[1],
        r.count[2], r.count[3], rho_quantile(r, 0.5), rho_quantile(r, 0.99), rho_quantile(r, 1),
        three_up(r.from_output.dx_rms_relative.worst), three_up(r.recommended.dx_rms_relative.worst),
        r.dgamma_estimate, r.side_buffer_bytes_per_row());
    const size_t n = r.channels.size();
    channels += n;
    bytes += static_cast<double>(n) *
             options.format.store.bytes(static_cast<kernels::i64>(n), options.format.bytes);
    least_x = std::min(least_x, largest_x(static_cast<kernels::i64>(r.channels.size())));
    side += r.side_buffer.size();
    for (size_t j = 0; j < r.channels.size(); ++j) worst.emplace_back(&layer, j);
  }
  fmt::print(
      "\nThe bounds hold for |x| up to {:g}, beyond which an fp32 sum of squares may overflow, and a dx that "
      "the format can hold."
      "\ndx: certified bound on the rms error over rstd max|dy| rms(gamma), every channel from y, then by "
      "the policy."
      " dgamma~: ESTIMATE of the relative L2 error, every channel from y.\n"
      "Side buffer: {} of {} channels keep x^ in fp32, {} bytes beside {:.0f} bytes of y a token.\n",
      -kernels::digits_up(-least_x, 6), side, channels, side * sizeof(float), bytes);

  const size_t shown = std::min(arguments.worst, worst.size());
  std::partial_sort(worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(shown), worst.end(),
                    [](const auto& a, const auto& b) {
                      return a.first->result.channels[a.second].bits_lost >
                             b.first->result.channels[b.second].bits_lost;
                    });
  fmt::print("\nWorst channels (bounds for |x^| <= {:g}; in brackets for every row)\n", options.x_hat_max);
  fmt::print("{:<{}} {:>7} {:>11} {:>11} {:>9} {:>6} {:>19} {:>19}  {}\n", "layer", kNameWidth, "channel",
             "gamma", "beta", "rho", "bits-", "error of x^", "dgamma a row", "class");
  for (size_t k = 0; k < shown; ++k) {
    const auto& [layer, j] = worst[k];
    const ChannelParameters& channel = layer->result.channels[j];
    const ChannelBounds& bounds = layer->result.from_output.channels[j];
    fmt::print(
        "{:<{}} {:>7} {:>11.4g} {:>11.4g} {:>9.3g} {:>6.1f} {:>8.2e} ({:>8.2e}) {:>8.2e} ({:>8.2e})  {}\n",
        shortened(layer->names.name, kNameWidth), kNameWidth, j, channel.gamma, channel.beta, channel.rho,
        channel.bits_lost, three_up(bounds.x_hat.conditional), three_up(bounds.x_hat.worst),
        three_up(bounds.dgamma.conditional), three_up(bounds.dgamma.worst), to_string(channel.channel_class));
  }
}

void extract(const Arguments& arguments) {
  if (arguments.file.empty() || arguments.out.empty())
    throw SpecError("stability", "--extract", "needs a checkpoint and --out FILE");
  std::map<std::string, std::string> metadata;
  for (const std::string& item : arguments.metadata) {
    const size_t equals = item.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw SpecError("stability", "--metadata", "'" + item + "' is not KEY=VALUE");
    metadata[item.substr(0, equals)] = item.substr(equals + 1);
  }
  const auto file = open_tensors(arguments.file);
  std::vector<NamedTensor> tensors;
  for (const NormNames& names : chosen_norms(arguments, *file)) {
    for (const std::string& name : {names.gamma, names.beta}) {
      if (!name.empty()) tensors.push_back({name, file->read(file->find(name))});
    }
  }
  kernels::write_file(arguments.out, safetensors_bytes(tensors, metadata));
  fmt::print("{} tensors written to {}\n", tensors.size(), arguments.out);
}

void run(Arguments& arguments) {
  arguments.options.format = storage_format(arguments.format);
  arguments.options.format.store.scale = arguments.scale;
  arguments.options.tau = arguments.tau.value_or(arguments.options.format.tau);
  if (arguments.file.empty() == arguments.gamma.empty())
    throw SpecError("stability", "input", "give either a checkpoint or --gamma");
  if (arguments.weight_offset && !std::isfinite(*arguments.weight_offset))
    throw SpecError("stability", "--weight-offset", "must be a finite number");
  if (!arguments.beta_name.empty() && arguments.gamma_name.empty())
    throw SpecError("stability", "--beta-name", "needs --gamma-name");
  if (!arguments.gamma_name.empty() && arguments.file.empty())
    throw SpecError("stability", "--gamma-name", "needs a checkpoint");
  const auto known = {"auto", "layernorm", "rmsnorm", kMemorySharingLayer, kMemorySharingRms};
  if (std::ranges::find(known, arguments.norm) == known.end()) {
    throw SpecError("stability", "--norm",
                    fmt::format("'{}' is not one of {}", arguments.norm, fmt::join(known, ", ")));
  }
  for (const auto& [given, option] : {std::pair(!arguments.beta.empty(), "--beta"),
                                      {arguments.weight_offset.has_value(), "--weight-offset"}})
    if (given && takes_no_gamma(arguments))
      throw SpecError("stability", option, "cannot be given with --norm " + arguments.norm);
  if (!arguments.out.empty()) kernels::require_writable(arguments.out, {arguments.file});
  if (arguments.extract) return extract(arguments);
  const std::vector<Layer> layers = analyse_all(arguments);
  // Names of zip entries may contain any bytes, but JSON is UTF-8.
  if (!arguments.out.empty())
    kernels::write_file(
        arguments.out,
        document(arguments, layers).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  if (arguments.form) {
    kernels::print_result(arguments.form, document(arguments, layers), "norms");
  } else {
    print_tables(arguments, layers);
  }
}

}  // namespace

void add_stability(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  StabilityOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "stability", "Certified error bounds of LayerNorm/RMSNorm gradients computed from the stored output");
  command->add_option("file", arguments->file, "Checkpoint (.safetensors or .npz)");
  command
      ->add_option("--format", arguments->format,
                   "Format of y and of the gradients: f32, f16, bf16; or of y alone: e4m3 (one scale), "
                   "mxfp8, int8 (groups of 64), int8_row")
      ->capture_default_str();
  command->add_option("--scale", arguments->scale,
                      "With e4m3: the tensor's scale, where it does not follow from its largest |y|");
  command
      ->add_option("--norm", arguments->norm,
                   "layernorm, rmsnorm, or auto: layernorm where there is a beta; ms_layernorm, ms_rmsnorm: "
                   "without gamma and beta")
      ->capture_default_str();
  command->add_option("--weight-offset", arguments->weight_offset,
                      "gamma is so much more than the stored weights: 1 for a norm that multiplies by 1 + w "
                      "(Gemma; zero-centred gamma). Without it 1 where the "
                      "checkpoint says so, else 0");
  command->add_option("--gamma-name", arguments->gamma_name,
                      "Analyse this tensor instead of every norm found");
  command->add_option("--beta-name", arguments->beta_name, "Its beta");
  CLI::Option* const gamma =
      command->add_option("--gamma", arguments->gamma, "Values of gamma instead of a checkpoint");
  command->add_option("--beta", arguments->beta, "Values of beta")->needs(gamma)->type_name("FLOAT");
  gamma->type_name("FLOAT");
  command->add_option("--eps", options.eps, "eps of the norm")->capture_default_str();
  command->add_option("--mean-ratio", options.mean_ratio, "Bound on |mean| rstd of a row of x")
      ->capture_default_str();
  command->add_option("--dy-max", options.dy_max, "Bound on |dy|")->capture_default_str();
  command->add_option("--x-hat-max", options.x_hat_max, "|x^| assumed by the conditional bounds")
      ->capture_default_str();
  command->add_option(
      "--tau", arguments->tau,
      "Storage error of x^ beyond which a channel is unstable; 0.0625 unless given, 0.25 for y in 8 bits");
  command->add_option("--rows", options.rows, "Rows summed in dgamma and dbeta")->capture_default_str();
  command->add_option("--worst", arguments->worst, "Channels shown in the table of worst ones")
      ->capture_default_str();
  command->add_option("--out", arguments->out, "Write the JSON (with --extract: the tensors) to this file");
  kernels::add_result_form(*command, arguments->form, "the norms");
  CLI::Option* const extract =
      command->add_flag("--extract", arguments->extract,
                        "Copy the norm parameters, as fp32, to the .safetensors file named by --out");
  for (const char* form : {"--json", "--csv"}) extract->excludes(form);
  command->add_option("--metadata", arguments->metadata, "With --extract: KEY=VALUE for the file's metadata")
      ->needs(extract);
  command->footer(
      "With --attack it searches for rows that break the bounds, over cases of its own: see outgrad "
      "stability --attack --help.");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace outgrad::validation
