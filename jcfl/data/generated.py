"""Datasets that need no file: scikit-learn's digits, and tasks with a known answer."""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from jcfl.data.dataset import Dataset, examples, random_share
from jcfl.errors import InputError, refuse_beyond_memory
from jcfl.registry import register


@register("data", "digits")
def digits(data_dir: Path) -> Dataset:
    """scikit-learn's 1,797 real digits, 8x8x1, 10 classes; they need no download.

    The published levels 0..16 are stored as pixels 0..255. A fixed fifth of every class is the test set.
    """
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    x = np.rint(bunch.images[..., None] * (255 / 16)).astype(np.uint8)  # type: ignore[union-attr]
    y = bunch.target  # type: ignore[union-attr]
    mask = random_share(y, 0.2)
    train, test = (examples(x[side], y[side], classes=10, where="digits") for side in (~mask, mask))
    return Dataset("digits", train, test, 10)


@register("data", "gaussian")
def gaussian(
    data_dir: Path,
    *,
    groups: Annotated[int, Field(ge=1, description="the number of true clusters of users")] = 4,
    users: Annotated[int, Field(ge=1, description="number of natural clients, equally many in each group")] = 100,
    train: Annotated[int, Field(ge=1, description="training examples of a user")] = 80,
    test: Annotated[int, Field(ge=1, description="test examples of a user")] = 20,
    features: Annotated[int, Field(ge=1, description="numbers per example")] = 20,
    classes: Annotated[int, Field(ge=2, description="labels per task")] = 5,
    separation: Annotated[float, Field(ge=0, le=1, description="0: the same task for all; 1: unrelated tasks")] = 1.0,
    noise: Annotated[float, Field(ge=0, description="spread of the noise on the true scores, whose own is 1")] = 0.0,
    seed: Annotated[int, Field(ge=0, lt=2**64, description="of the tasks and the examples")] = 0,
) -> Dataset:
    """Generated linear classification tasks with known clusters: a user's group determines its task.

    Features are standard normal, x [d]. A user of group g labels them argmax_c (W_g x + noise · e)_c, e standard
    normal, with `true_parameters` W_g. Groups differ in W alone: features are drawn alike everywhere.
    """
    if users < groups:
        raise InputError(f"data 'gaussian': {users} users cannot fill {groups} groups; expected users >= groups")
    need = 4 * max(train, test) * users * (features + 4 * classes) + 16 * groups * classes * features
    refuse_beyond_memory(f"the examples of {users} users", need, "use fewer users, examples, features or classes")
    weights = true_parameters(groups, features, classes, separation, seed)
    group_of_user = (np.arange(users) * groups // users).astype(np.int32)
    parts = []
    for side, size in enumerate((train, test)):
        rng = np.random.default_rng([seed, 1 + side])
        user = np.repeat(np.arange(users), size)  # [n]
        x = rng.standard_normal((len(user), features), np.float32)
        own = np.split(x, np.cumsum(np.bincount(group_of_user[user], minlength=groups))[:-1])
        scores = np.concatenate([rows @ w.T for rows, w in zip(own, weights, strict=True)])  # users lie group by group
        y = (scores + noise * rng.standard_normal(scores.shape)).argmax(1)
        parts.append(examples(x, y, user, classes=classes, where="gaussian"))
    return Dataset("gaussian", parts[0], parts[1], classes, group_of_user)


def true_parameters(groups: int, features: int, classes: int, separation: float = 1.0, seed: int = 0) -> np.ndarray:
    """The parameters W of the tasks in `gaussian`, with rows of length one. `[k, c, d]`

    W_g is a mixture of a matrix of the group and a matrix of all groups; `separation` is the share of the first. Both
    are standard normal.
    """
    rng = np.random.default_rng([seed, 0])
    common, own = rng.standard_normal((classes, features)), rng.standard_normal((groups, classes, features))
    mixed = np.sqrt(1 - separation) * common + np.sqrt(separation) * own
    return mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)
