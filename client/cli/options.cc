#include "client/cli/options.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace edgewise::cli {

void ConnectionFlags::Register(FlagSet& flags) {
  flags.Section("Connection");
  flags.Add("server", "HOST:PORT", "where the server listens", &server);
  flags.Add("timeout", "DURATION", "of each call, as 500ms, 5s or inf", &timeout);
  flags.AddSwitch("wait_for_ready", "wait for the server, up to the timeout, where it cannot be reached",
                  &wait_for_ready);
  flags.AddSwitch("tls", "encrypt, trusting the system's roots; implied by the other --tls_ flags", &tls);
  flags.Add("tls_ca_file", "PEM", "who may sign the server's certificate", &tls_ca_file);
  flags.Add("tls_cert_file", "PEM", "our certificate, for mutual TLS", &tls_cert_file);
  flags.Add("tls_key_file", "PEM", "our private key, for mutual TLS", &tls_key_file);
  flags.Add("tls_server_name", "NAME", "the name to expect in the server's certificate", &tls_server_name);
  flags.Add("token_file", "FILE", "holds the bearer token to send", &token_file);
  flags.AddSwitch("allow_plain_token", "send the token to another machine without TLS", &allow_plain_token);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectionFlags::Connect(bool own_connection) const {
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout is ", absl::FormatDuration(timeout), "; expected > 0"));
  }
  ClientOptions options;
  options.address = server;
  options.timeout = timeout;
  options.wait_for_ready = wait_for_ready;
  options.allow_plain_token = allow_plain_token;
  options.own_connection = own_connection;
  if (tls || !tls_ca_file.empty() || !tls_cert_file.empty() || !tls_key_file.empty() || !tls_server_name.empty()) {
    options.tls = TlsOptions{tls_ca_file, tls_cert_file, tls_key_file, tls_server_name};
  }
  if (!token_file.empty()) {
    std::ifstream file(token_file);
    options.bearer_token.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    absl::StripAsciiWhitespace(&options.bearer_token);
    if (!file || options.bearer_token.empty()) {
      return absl::NotFoundError(absl::StrCat("--token_file: cannot read a token from \"", token_file, "\""));
    }
  }
  return Client::Create(options);
}

void RequestFlags::Register(FlagSet& flags) {
  flags.Section("Input (one of --text, --token_ids, --input)");
  flags.Add("model", "NAME", "the model to ask; `edgewise models` lists them", &model);
  flags.Add("version", "N", "the model's version; 0: the latest", &version);
  flags.Add("text", "TEXT", "text, through the model's tokenizer", &text);
  flags.Add("token_ids", "1,2,3", "token ids", &token_ids);
  flags.Add("input", "FILE",
            "JSON lines (- for standard input): {\"text\": ...} or {\"token_ids\": [...]}, and\n"
            "                              optional \"second_text\" or \"second_token_ids\", \"label\", \"labels\"",
            &input);
  flags.Add("second_text", "TEXT", "the second text of a pair", &second_text);
  flags.Add("second_token_ids", "1,2,3", "the second sequence of a pair", &second_token_ids);
  flags.Add("truncate", "head|tail", "drop tokens there where the input is too long; otherwise refused", &truncate);
  flags.Section("Cost and uncertainty");
  flags.Add("max_edges", "N", "hard cap on attended pairs per input and sample", &max_edges);
  flags.Add("max_density", "D", "the same as a share of all pairs, in (0, 1]", &max_density);
  flags.AddSwitch("allow_degraded", "under pressure the server may lower samples, then the cap", &allow_degraded);
  flags.Add("samples", "N", "forward passes to average over", &samples);
  flags.Add("seed", "S", "makes the answer repeatable; without it the server draws one", &seed);
  flags.Add("tolerance", "T", "stop sampling at this standard error of the leading label", &tolerance);
  flags.Add("first_sample", "K", "index of the first sample: a part of a larger ensemble", &first_sample);
  flags.AddSwitch("dense", "attend to every pair, whatever the model does", &dense);
  flags.Add("top_k", "K", "the K most probable labels", &top_k);
  flags.Add("priority", "P", "0: default; 1: highest", &priority);
}

absl::StatusOr<v1::PredictRequest> RequestFlags::MakeRequest() const {
  if (model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (version < 0) return absl::InvalidArgumentError(absl::StrCat("--version is ", version, "; expected >= 0"));
  if (max_edges && max_density) {
    return absl::InvalidArgumentError("--max_edges and --max_density exclude each other");
  }
  if (max_edges && *max_edges == 0) return absl::InvalidArgumentError("--max_edges is 0; expected >= 1");
  if (max_density && !(*max_density > 0.0 && *max_density <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat("--max_density is ", *max_density, "; expected in (0, 1]"));
  }
  if (samples == 0) return absl::InvalidArgumentError("--samples is 0; expected >= 1");
  if (!(tolerance >= 0.0)) {
    return absl::InvalidArgumentError(absl::StrCat("--tolerance is ", tolerance, "; expected >= 0"));
  }
  v1::PredictRequest request;
  request.set_model(model);
  request.set_version(version);
  if (max_edges) request.mutable_budget()->set_max_edges(*max_edges);
  if (max_density) request.mutable_budget()->set_max_density(*max_density);
  if (allow_degraded) request.mutable_budget()->set_allow_degraded(true);
  v1::Ensemble* ensemble = request.mutable_ensemble();
  ensemble->set_samples(samples);
  if (seed) ensemble->set_seed(*seed);
  ensemble->set_tolerance(tolerance);
  ensemble->set_first_sample(first_sample);
  if (dense) request.set_attention(v1::DENSE);
  request.mutable_outputs()->set_top_k(top_k);
  request.set_priority(priority);
  return request;
}

absl::StatusOr<std::vector<LabelledInput>> RequestFlags::ReadInputs() const {
  const int sources = text.has_value() + token_ids.has_value() + input.has_value();
  if (sources != 1) {
    return absl::InvalidArgumentError(sources == 0 ? "no input: give --text, --token_ids or --input"
                                                   : "--text, --token_ids and --input exclude each other");
  }
  if (second_text && second_token_ids) {
    return absl::InvalidArgumentError("--second_text and --second_token_ids exclude each other");
  }
  v1::Truncate how = v1::REFUSE;
  if (truncate == "head") {
    how = v1::HEAD;
  } else if (truncate == "tail") {
    how = v1::TAIL;
  } else if (!truncate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--truncate is \"", truncate, "\"; expected head or tail"));
  }
  std::vector<LabelledInput> inputs;
  if (input) {
    if (second_text || second_token_ids) {
      return absl::InvalidArgumentError(
          "--second_text and --second_token_ids go with --text or --token_ids; in a "
          "file, put them on each line");
    }
    absl::StatusOr<std::vector<LabelledInput>> lines = ReadInputFile(*input);
    if (!lines.ok()) return lines.status();
    inputs = *std::move(lines);
  } else {
    LabelledInput one;
    absl::StatusOr<v1::Sequence> sequence = MakeSequence(text, token_ids);
    if (!sequence.ok()) return sequence.status();
    *one.input.mutable_sequence() = *std::move(sequence);
    if (second_text || second_token_ids) {
      absl::StatusOr<v1::Sequence> second = MakeSequence(second_text, second_token_ids);
      if (!second.ok()) return second.status();
      *one.input.mutable_second() = *std::move(second);
    }
    inputs.push_back(std::move(one));
  }
  for (LabelledInput& one : inputs) {
    one.input.mutable_sequence()->set_truncate(how);
    if (one.input.has_second()) one.input.mutable_second()->set_truncate(how);
  }
  return inputs;
}

}  // namespace edgewise::cli
