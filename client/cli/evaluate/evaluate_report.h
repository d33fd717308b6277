// The output of `edgewise evaluate`: tables for people, and the same as JSON.
#ifndef EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATE_REPORT_H_
#define EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATE_REPORT_H_

#include <iosfwd>
#include <nlohmann/json.hpp>

#include "client/cli/evaluate/evaluation.h"

namespace edgewise::cli {

// A table of cost, one of quality where there is more than one measure, and what the columns mean. Rows are numbered
// from 1. The evaluation has answers to dense attention.
void PrintEvaluation(const Evaluation& evaluation, std::ostream& out);

// "measure", the key of the first measure ("": none), and "settings", one object for each row; what is undefined is
// null. keep_edges: the edges that caps keep, for the "profile" of a setting ("": the model's way).
nlohmann::json EvaluationJson(const Evaluation& evaluation, const std::string& keep_edges);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_EVALUATE_EVALUATE_REPORT_H_
