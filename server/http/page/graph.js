// A graph of the protocol, of one input.

// One head of one layer as a list of { from, to, weight }.
export function edgesOf(head) {
  const {rowOffsets = [], keys = [], weights = []} = head, edges = [];
  for (let from = 0; from + 1 < rowOffsets.length; ++from) {
    for (let e = rowOffsets[from]; e < rowOffsets[from + 1]; ++e)
      edges.push({from, to: keys[e], weight: weights[e] || 0});
  }
  return edges;
}

// Positions of the sequence that a layer belongs to, within those of the whole input.
export function spanOf(model, graph, layer) {
  const all = Number(model.layers), lengths = [];
  for (let l = 0; l <= layer; l += all) lengths.push(graph.layers[l].heads[0].rowOffsets.length - 1);
  const length = lengths.pop();
  return {begin: lengths.reduce((sum, one) => sum + one, 0), length};
}
