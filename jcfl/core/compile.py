"""From a method's value to functions: the one place where the answers are checked against each other and the run."""

from dataclasses import replace

import jax.numpy as jnp

from jcfl.core import clients, measuring, parts, phases, returned, rounds, terms
from jcfl.core.aggregates import Fair, Matched
from jcfl.core.context import Context, model_bytes, refuse_too_large
from jcfl.core.faults import looks_at_uploads
from jcfl.core.local import counts_work
from jcfl.core.memory import memories
from jcfl.core.method import Aggregate, Answer, Mean, Method, Phase, Train, reads
from jcfl.core.neutral import Alone, Every, Incomparable, Nothing, Together
from jcfl.core.releases import refuse_uncovered, with_privacy
from jcfl.core.soft import SoftGroup
from jcfl.errors import InputError, named, unknown
from jcfl.types import Algorithm, Clients


def compile(method: Method, context: Context) -> Algorithm:
    """A method's functions for a run.

    Raises:
        InputError: two answers have no meaning together, or one has none for this run; the message says why.
    """
    method = with_privacy(method, context)
    check(method, context)
    algorithm = rounds.algorithm(method, context)
    end = sum(phase.rounds for phase in method.before)
    for phase in reversed(method.before):
        first = rounds.algorithm(with_privacy(warm_up(phase, method), context), context)
        algorithm = phases.after_phase(phase, end, first, context, algorithm)
        end -= phase.rounds
    vote = method.answer.vote
    if vote is None:
        return algorithm
    alone = method.with_answer(vote=None)
    other = algorithm if vote.method is None else compile(vote.method.with_answer(tune=alone.answer.tune), context)
    return phases.with_votes(context, algorithm, other, vote.copies, vote.by)


def warm_up(phase: Phase, method: Method) -> Method:
    """The method of a phase: plain local training, for one model of all clients or one for each.

    One model of all is averaged as the method averages ω later: by its rule, so that defences hold in the phase too,
    and with clients weighted by size, however they count in their clusters.
    """
    group, aggregate = Alone(), Aggregate()
    if phase.train == "shared":
        own = method.aggregate
        rule = own.rule_of_shared
        rule = Mean() if isinstance(rule, Matched) else rule  # plain training has no neurons to match
        group, aggregate = Together(), Aggregate(rule=rule, rate=own.rate, exclude=own.exclude)
    plain = {"train": Train(), "aggregate": aggregate, "answer": Answer(), "before": ()}
    return replace(method, describe=Nothing(), compare=Incomparable(), group=group, when=Every(), **plain)


def refuse_in_turn(method: Method, context: Context) -> None:
    """Refuse options by which something would change with a model in rounds in which this model is not trained."""
    train = method.train
    if not train.in_turn:
        return
    if not method.trains_shared:
        raise InputError(f"{method.name}: the global model is not trained, so it cannot be trained in turn with others")
    reasons = {
        "private parameters": bool(train.private),
        "control variates": train.control,
        "clients that train one after another": train.chained,
        "train.keep_optimizer_state": clients.trainer(method, context).keeps_state,
        "privacy": method.aggregate.privacy is not None,
        "a server optimizer": method.aggregate.server is not None,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is not None:
        raise InputError(f"{method.name}: models that are trained in turn do not go together with {reason}")


def refuse_rules(method: Method, context: Context) -> None:
    """Refuse averaging rules, and other ways to average, where they have no meaning.

    Raises:
        InputError: the message names the rule and says why.
    """
    name, train, rule, others = method.name, method.train, method.aggregate.rule, method.aggregate.other_rules
    if others and train.chained:
        raise InputError(
            f"{name}: clients that train one after another are averaged as they hand the model on, so the rule "
            f"{str(others[0])!r} (add-ons robust, fair) has nothing to replace; train in parallel"
        )
    if others and method.group.alone and not method.trains_shared:
        said = str(others[0])
        raise InputError(
            f"{name}: every client is alone, so there is nothing that the rule {said!r} (add-ons robust, fair) could "
            "average"
        )
    kept = clients.kept_states(method, context) if any(map(reads, others)) else {}
    for other in others:
        for read in reads(other):
            if read not in kept:
                raise unknown(f"state that the rule {str(other)!r} reads, which clients of {name} keep:", read, kept)
    if isinstance(rule, Matched | Fair) and train.private:
        raise InputError(f"{name}: the rule {str(rule)!r} needs whole models, and the private parameters are not sent")
    if isinstance(rule, Fair) and "model" in method.group.keeps(method, context):
        raise InputError(
            f"{name}: the rule {str(rule)!r} needs clients that have trained the model that their average replaces, "
            "and here the last models of absent clients count too; only the average of a global model can be fair"
        )
    if method.is_summed and any(isinstance(other, Fair) for other in others):
        raise InputError(
            f"{name}: the rule 'fair' takes losses of single models, and with cam two models predict together"
        )
    if method.aggregate.exclude and method.group.alone and not method.trains_shared:
        raise InputError(
            f"{name}: every client is alone, so there is nothing that the add-on 'exclude' could leave out"
        )
    if method.aggregate.absent and method.aggregate.privacy is not None:
        raise InputError(f"{name}: under privacy nobody may know how many members a cluster has; set absent=false")


def check(method: Method, context: Context) -> None:
    """Refuse answers that have no meaning together; each group checks its own description and comparison.

    Raises:
        InputError: the message names the answers and says why.
    """
    slots = f"group {method.group.name!r}: slots"
    returned.count(named(slots, method.group.slots)(context), slots)
    refuse_uncovered(method, context)
    refuse_rules(method, context)
    refuse_terms(method, context)
    refuse_in_turn(method, context)
    refuse_all_models(method)
    refuse_chain(method, context)
    refuse_part_of_steps(method, context)
    refuse_parts(method)
    if (context.measures_quality or context.models_at) and method.train.active:
        measuring.refuse(method, context)
    refuse_large(method, context)


def refuse_terms(method: Method, context: Context) -> None:
    """Refuse loss terms and corrections of gradients that would have nothing to act on.

    Raises:
        InputError: the message names the term and says why.
    """
    train, name = method.train, method.name
    if train.control:  # refuses trainers whose steps are not those of plain SGD
        one = Clients((), jnp.zeros((1,), int), jnp.ones((1,), bool))
        clients.trainer(method, context).mean_gradient({}, {}, one)
    pulls = next((term for term in train.terms if term.to in ("shared", "mean") and not term.is_off), None)
    if method.is_summed and pulls is not None:
        raise InputError(
            f"{name}: cam adds the global model's logits, so the {pulls}, has no meaning; set {pulls.option}=0"
        )
    private = parts.names(context.task, train.private, "private")
    for term in train.terms if private else ():
        on = terms.PARTS.get(getattr(term, "on", "everything"), terms.PARTS["everything"])
        parts.refuse_all_private(
            f"{name}: the {term}", on(context.task)(parts.named(context.task)), context.task, private
        )
    if (train.shared_terms or method.aggregate.shared_rule) and not method.trains_shared:
        what = "its loss terms have" if train.shared_terms else "an averaging rule of its own has"
        raise InputError(f"{name}: the global model is not trained, so {what} no meaning")
    other = "by_share" if train.by_share else "cam" if method.is_summed else None
    if other is not None and train.correction:
        raise InputError(
            f"{name}: the mean gradient of a sample is that of the loss of the model alone, not scaled and without the "
            f"global model's logits; leave out {other} or correction"
        )


def refuse_all_models(method: Method) -> None:
    """Refuse clients that train all models without a soft group and a mixture, and the other way round.

    Raises:
        InputError: the message names what has to go together, or what such training does not take.
    """
    train, name = method.train, method.name
    soft = train.models == "all"
    if soft != (method.answer.model == "mixture"):
        raise InputError(
            f"{name}: train: all_models and answer: mixture go together, since a mixture needs the membership that "
            f"such training keeps; got train={train}, answer={method.answer}"
        )
    if soft and not isinstance(method.group, SoftGroup):
        raise InputError(
            f"{name}: clients that train all models are grouped by their membership; expected group 'em' or another "
            f"soft group, got {method.group.name!r}"
        )
    if isinstance(method.group, SoftGroup) and not soft:
        raise InputError(
            f"{name}: group {method.group.name!r} needs clients that train all models; set method.train=all_models"
        )
    if not soft:
        return
    parts_of_training = (train.terms, train.control, train.private, train.tied, train.by_share)
    if any(parts_of_training) or method.trains_shared or method.aggregate.other_rules:
        raise InputError(
            f"{name}: training of all models takes no loss terms, parts, control variates, robust or fair rules, and "
            "no losses scaled by shares"
        )
    if method.answer.tune:
        raise InputError(
            f"{name}: a mixture of models cannot be fine-tuned as one model; leave the add-on 'finetune' out"
        )
    if method.aggregate.absent:
        raise InputError(f"{name}: clients that train all models are no members of one cluster; set absent=false")


def refuse_chain(method: Method, context: Context) -> None:
    """Refuse what is not defined for clients that train one after another.

    Raises:
        InputError: the message says what.
    """
    train, name = method.train, method.name
    if not train.chained:
        return
    if not (method.trains_shared or isinstance(method.group, Together)):
        raise InputError(
            f"{name}: clients that train one after another hand on one model of all, so it takes group 'together', or "
            f"a method that trains a global model beside the clusters'; got group {method.group.name!r}"
        )
    if train.private or train.control:
        raise InputError(f"{name}: clients that train one after another keep no parameters or control variates")
    if looks_at_uploads(context.faults, method.aggregate.exclude):
        raise InputError(
            f"{name}: clients that train one after another hand their models on, so the server sees no uploads that an "
            "attack could forge or that it could leave out; leave out the attack, the add-on 'exclude' and "
            "on_divergence"
        )


def refuse_part_of_steps(method: Method, context: Context) -> None:
    """Refuse training that is not defined for clients that do a part of their steps, where there are such clients.

    Raises:
        InputError: the message says what is not defined.
    """
    train, name = method.train, method.name
    if not context.faults.reliability.is_partial:
        return
    if train.control or train.chained:
        what = "control variates are" if train.control else "training one after another is"
        raise InputError(
            f"{name}: {what} not defined for clients that do a part of their steps; take reliability.late=lost"
        )
    local = clients.trainer(method, context)
    if train.active and not counts_work(local):
        raise InputError(
            f"{name}: trainer {type(local).__name__} has steps of its own, and does not say that slow clients do a "
            "part of them; set counts_work = True in its class if it does the share sent.own['work'] of its steps, or "
            "calls Local.train, or take reliability.late=lost"
        )


def refuse_parts(method: Method) -> None:
    """Refuse private beside tied parameters, and tied parameters of clients that send no model.

    Raises:
        InputError: the message says why.
    """
    train, name = method.train, method.name
    if train.private and train.tied:
        raise InputError(f"{name}: give either private or tied parameters; all others belong to the cluster")
    if method.group.alone and train.tied:
        raise InputError(
            f"{name}: every client has a model of its own that it does not send, so no layers can be averaged over "
            "clients; take fedavg and train=private with the other layers"
        )


def refuse_large(method: Method, context: Context) -> None:
    """Refuse models of clients that do not fit the memory.

    Raises:
        InputError: the message says how much they need and what needs less.
    """
    grouped = "model" in method.group.keeps(method, context)
    if not (method.group.alone or grouped):
        return
    name, population, resources, each = method.name, context.population, context.resources, model_bytes(context.task)
    if resources.states_on_host:
        most = population.cohort if grouped else resources.chunk
        refuse_too_large(f"{name} trains the model", most, each, "take fewer clients at a time or a smaller model")
    else:
        advice = "set client_states: host, or take fewer clients or a smaller model"
        refuse_too_large(f"{name} keeps the last model", population.clients, each, advice, memories(resources.devices))
