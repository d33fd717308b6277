"""A client of Edgewise: predictions with the edges they cost and how sure they are.

    import edgewise

    with edgewise.Client("127.0.0.1:8001") as client:
        answer = client.predict("sentiment", "a warm film", max_density=0.05, samples=8)
        print(answer.label, answer.probability, answer.spread, answer.edges, answer.density)

The messages behind it are those of edgewise.v1.inference_pb2.
"""

from edgewise.answers import Alternative, Answer, LabelledToken, Latency, Model, Score, Token, Top
from edgewise.channel import Tls
from edgewise.client import Client, Generation
from edgewise.errors import Error

__all__ = ["Alternative", "Answer", "Client", "Error", "Generation", "LabelledToken", "Latency", "Model", "Score", "Tls",
           "Token", "Top"]
