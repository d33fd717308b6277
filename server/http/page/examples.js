// Inputs of the bundled models by name, and of others by task. The first that is there is shown first.

// Words with notes among them, and a question.
function noted() {
  const colours = ["black", "blue", "green", "red"], cities = ["athens", "cairo", "delhi", "lima", "oslo", "paris"];
  const words = ("now i see our strength and all the world shall hear of it my lord as one that was a king so let " +
    "us go to the house and speak no more of this").split(" ");
  const note = (i) => `${cities[i % 6]}=${colours[i % 6 % 4]}`;
  const texts = Array.from({length: 240}, (_, i) => i % 9 ? words[i % words.length] : note(i / 9));
  return `${texts.join(" ")} delhi?`;
}

// A ring in 32 x 32 pixels, as 8 x 8 patches of 4 x 4.
function ring() {
  const pixel = (x, y) => Math.abs(Math.hypot(x - 15.5, y - 15.5) - 9) < 2 ? 0.8 : -0.2;
  return Array
      .from(
          {length: 64},
          (_, patch) =>
              Array.from({length: 16}, (__, i) => pixel(patch % 8 * 4 + i % 4, (patch >> 3) * 4 + (i >> 2))).join(" "))
      .join("\n");
}

// A lattice of 5 x 5 nodes in three colours: colour and degree of each, and the distance of each pair.
function lattice() {
  const side = 5, nodes = Array.from({length: side * side}, (_, i) => [i % side, Math.floor(i / side)]);
  const inner = (at) => at > 0 && at < side - 1 ? 2 : 1;
  const values = nodes.flatMap(([x, y]) => {
    const colour = Math.floor((x + y) / 3);
    return [0, 1, 2].map((one) => one === colour ? 1 : 0).concat((inner(x) + inner(y)) / 4 - 1);
  });
  const distances = nodes.flatMap(([x, y]) => nodes.map(([u, v]) => Math.min(7, Math.abs(x - u) + Math.abs(y - v))));
  return JSON.stringify(
      {features: {rows: nodes.length, columns: 4, values}, bias: {buckets: btoa(String.fromCharCode(...distances))}});
}

export const ofModel = {
  sentiment: "a warm , funny and moving film that never loses its way",
  "review-encoder": "a warm, funny and moving film that never loses its way",
  "review-ranker": "a film to see?",
  long: noted(),
  listops: "[MAX 2 9 [MIN 4 7 ] 0 [SM 3 3 ] ]",
  duplicates: Array.from({length: 256}, (_, i) => (i * i * 7 + (i ** 3 >> 5)) % 256 + 1).join(" "),
  shapes: ring(),
  graphs: lattice(),
};

export const ofTask = {
  "causal-lm": "ROMEO:\nIs the day so young?",
  "fill-mask": "the dog is [MASK]",
};
