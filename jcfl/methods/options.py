"""The options that several methods have in common."""

from typing import Annotated, Any, Literal

from pydantic import Field

from jcfl.core.method import Weights
from jcfl.core.neutral import Round
from jcfl.grouping.groups import Empty as Empty
from jcfl.grouping.losses import Clusters as Clusters

SEARCH: Any = {"search": [0.001, 1.0], "log": True}
"""Where `jcfl tune` searches a weight for which no value is usual: equal steps are equal factors."""

Mu = Annotated[
    float, Field(ge=0, description="weight of the proximal term to the model received", json_schema_extra=SEARCH)
]
Lam = Annotated[float, Field(ge=0, description="weight of the proximal term", json_schema_extra=SEARCH)]
Averaging = Annotated[Weights, Field(description="weights of clients in an average")]
SharedUpdate = Annotated[
    Literal["parallel", "sequential"],
    Field(description="clients start from the same global model, or each from the previous client's model"),
]
Represent = Annotated[
    Literal["whole", "head", "dense"] | Annotated[tuple[str, ...], Field(min_length=1)],
    Field(description="the compared part of a model: all, the last dense layer, all dense layers, or layers by name"),
]
Rate = Annotated[float, Field(gt=0, le=1, description="step of the server towards the mean, ε")]
Runs = Annotated[int, Field(ge=2, description="number of independent runs")]
Iterations = Annotated[int, Field(ge=1, description="assignments a round")]
Refit = Annotated[bool, Field(description="K-means from new seeds in each round")]
Shots = Annotated[
    tuple[Round, Round] | None, Field(description="regroup only in rounds [a, b) of the method's own phase")
]
Epochs = Annotated[
    int | None, Field(ge=1, description="local epochs before clustering; as many as in a round if not given")
]
