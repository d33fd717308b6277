// The page: a request as the form has it, sent again with each change, and what comes back.
import {sentence, showAnswer, wordsOf} from "./answer.js";
import {CallError, Latest, models, predict, useToken} from "./api.js";
import {exampleFirst, predictRequest, samples, showFields, showValues, takeImage} from "./ask.js";
import {forget, showAttention} from "./attention.js";
import {showWords} from "./deciding.js";
import {byId, count, el, plural} from "./view.js";
import {stop, write} from "./write.js";

const gap = 260;           // milliseconds between calls: at most four a second
const mostEdges = 200000;  // of a graph that is asked for: some megabytes of JSON

const calls = new Latest(gap);
let list = [], model = null, image = null;
let input = 0;     // its number: another one with each change
let known = null;  // edges of the last answer to the input as it is
let granted = 0;   // the largest bound on edges that the server has returned a graph for

const forgetInput = () => {
  input += 1;
  known = null;
};
const say = (text) => {
  byId("said").textContent = text;
};

function fail(error) {
  byId("error").replaceChildren(el("p", {class: "error"}, error.message));
  if (!byId("answer").hidden)
    byId("error").append(el("p", {class: "note"}, "Below is the answer to the request before."));
  byId("results").classList.add("stale");
  if (error instanceof CallError && error.status === 401) {
    byId("access").hidden = false;
    byId("token").focus();
  }
}

function succeed() {
  byId("error").replaceChildren();
  byId("results").classList.remove("stale");
  byId("empty").hidden = true;
}

// The graph of the first sample, or why there is none.
async function graphOf(request, edges, signal) {
  if (edges > mostEdges)
    return {why: `A graph of ${count(edges)} edges is too large for this page; a lower budget shows it.`};
  await calls.turn(signal);
  try {
    const one = {...request, ensemble: {...request.ensemble, samples: 1}, outputs: {graph: true}};
    return (await predict(one, signal)).predictions[0];
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    return {why: `The server gives no graph: ${error.message}`};
  }
}

// A graph is of one sample. It comes with the answer where that is known to be small, else in a call of its own.
function joinsGraph(request, cap) {
  const pairs = Number(known?.pairs || 0), bound = pairs * cap;
  const likely = known?.capped ? bound : Math.min(bound, known?.edges || 0);
  return request.ensemble.samples === 1 && pairs > 0 && bound <= granted && likely <= mostEdges;
}

async function ask(request, signal) {
  const cap = request.budget?.maxDensity ?? 1, number = input;
  if (joinsGraph(request, cap)) request.outputs.graph = true;
  try {
    const response = await predict(request, signal), [first] = response.predictions;
    if (number === input) known = first.edges || {};
    const words = wordsOf(model, first);
    succeed();
    showAnswer(model, response, words);
    say(sentence(response));
    const {graph, why} = first.graph ? first : await graphOf(request, first.edges?.edges || 0, signal);
    if (graph) granted = Math.max(granted, Number(first.edges?.pairs || 0) * cap);
    const note = samples() > 1 ? `, in the first of ${samples()} samples` : "";
    showAttention(model, first, graph, words, {note, why});
    showWords(model, first, graph, words, image);
  } catch (error) {
    if (error.name === "AbortError") return;
    fail(error);
    if (!(error instanceof CallError)) throw error;
  } finally {
    if (!signal.aborted && calls.waiting === null) byId("results").removeAttribute("aria-busy");
  }
}

function askAgain() {
  if (!model) return;
  let request;
  try {
    request = predictRequest(model);
  } catch (error) {
    return fail(error);
  }
  if (!request) return;
  byId("results").setAttribute("aria-busy", "true");
  calls.run((signal) => ask(request, signal));
}

function show(chosen) {
  model = chosen;
  forgetInput();
  image = null;
  stop();
  forget();
  const facts = [
    model.task, `${model.attention} attention`, `${plural(model.layers, "layer")} of ${plural(model.heads, "head")}`,
    `at most ${plural(model.maxTokens, "token")}`
  ];
  byId("about").textContent = `${model.description ? `${model.description}. ` : ""}${facts.join(" · ")}`;
  byId("drop").replaceChildren(el("b", {}, "Choose an image"), el("span", {}, "or drop one here: PNG or JPEG"));
  showFields(model);
  showValues(model);
  for (const section of ["brief", "written", "answer", "words", "attention"]) byId(section).hidden = true;
  byId("empty").hidden = false;
  byId("error").replaceChildren();
  askAgain();
}

const nameOf = (one) =>
    list.some((other) => other !== one && other.name === one.name) ? `${one.name}, version ${one.version}` : one.name;

async function load() {
  try {
    list = (await models()).filter((one) => one.state !== "DRAINING");
  } catch (error) {
    byId("state").textContent = error.status === 401 ? "needs a token" : "not reached";
    return fail(error);
  }
  const ready = list.filter((one) => one.state === "READY");
  byId("state").textContent = `${count(ready.length)} of ${count(list.length)} models serve`;
  byId("model").replaceChildren(...list.map(
      (one, i) =>
          el("option", {value: i, disabled: one.state !== "READY"},
             one.state === "READY" ? nameOf(one) :
                                     `${nameOf(one)} (${one.state.toLowerCase()}: ${one.error || "wait"})`)));
  if (ready.length === 0) return fail(new Error("No model serves yet."));
  const asked = decodeURIComponent(location.hash.slice(1));
  const first = ready.find((one) => one.name === asked) || exampleFirst(ready);
  byId("model").value = list.indexOf(first);
  show(first);
}

async function takeFile(file) {
  if (!file) return;
  try {
    image = await takeImage(file);
  } catch (error) {
    return fail(error);
  }
  forgetInput();
  byId("drop").replaceChildren(el("img", {src: image, alt: ""}), el("span", {}, file.name));
  askAgain();
}

const on = (id, event, act) => byId(id).addEventListener(event, act);
const changeInput = () => {
  forgetInput();
  askAgain();
};
const changeSetting = () => {
  if (model) showValues(model);
  askAgain();
};

on("ask", "submit", (event) => event.preventDefault());
on("model", "change", () => {
  const chosen = list[Number(byId("model").value)];
  history.replaceState(null, "", `#${encodeURIComponent(chosen.name)}`);
  show(chosen);
});
for (const id of ["text", "second"]) on(id, "input", changeInput);
for (const id of ["cap", "samples", "seed", "sparse"]) on(id, "input", changeSetting);
on("draw", "click", () => {
  byId("seed").value = Math.floor(Math.random() * 1e6);
  changeSetting();
});
on("image", "change", () => takeFile(byId("image").files[0]));
on("drop", "dragover", (event) => event.preventDefault());
on("drop", "drop", (event) => {
  event.preventDefault();
  takeFile(event.dataTransfer.files[0]);
});
on("write", "click", () => {
  succeed();
  write(model, say, fail);
});
on("stop", "click", stop);
on("brief", "click", () => byId("answer").scrollIntoView());
on("use", "click", () => {
  useToken(byId("token").value);
  byId("error").replaceChildren();
  load();
});
on("token", "keydown", (event) => {
  if (event.key === "Enter") byId("use").click();
});
load();
