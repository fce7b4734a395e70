"""The part of a plan that is one method's run, with what trials chose for it."""

import warnings

import jax

from jcfl.core.context import Resources
from jcfl.errors import Notice
from jcfl.runs.plan import Plan, algorithms_of, shapes, task_of, with_option
from jcfl.runs.sections import Tuned
from jcfl.types.target import target


def of_method(plan: Plan, title: str) -> Plan:
    """The part of a plan that is one method's run, as `config.tuned` says."""
    config, several, objects = plan.config, len(plan.config.methods) > 1, plan.objects
    one = (config.tuned or {}).get(title, Tuned())
    method = config.methods[title]
    if several:
        found = {method.title: one} if one != Tuned() else {}
        known = config.decided or {}
        decided = {method.title: known[title]} if title in known else None
        own = {"tuned": config.tuned and found, "decided": decided}
        objects = objects.of_method(list(config.methods).index(title))
        config = config.model_copy(update={"method": method, "compare": (), **own})
    part = plan._replace(config=config, objects=objects, algorithms={title: plan.algorithms[title]})
    part = with_tuned(part, one)
    (algorithm,) = part.algorithms.values()  # two methods of one name have titles of their own
    return part._replace(algorithms={title: algorithm})


def with_tuned(plan: Plan, tuned: Tuned) -> Plan:
    """The plan of one method with the choices of `tuned` in place of the constants'."""
    if tuned == Tuned():
        return plan
    context, config = plan.context, plan.config
    given = {key: value for key, value in tuned.model_dump().items() if value is not None and key in Resources._fields}
    if given.get("devices", 1) > jax.device_count():  # the run may have begun on a machine with more of them
        told = (
            f"the run had {given['devices']} devices, and {jax.device_count()} are here, so that its results agree to"
        )
        hint = "; jcfl.use_cores() gives each core one, before JAX starts" if target().is_cpu else ""
        warnings.warn(f"{told} rounding only{hint}", Notice, stacklevel=2)
        given["devices"] = jax.device_count()
    resources = context.resources._replace(**given)
    share = -(-context.population.cohort // resources.devices)  # clients of one device
    resources = resources._replace(chunk=-(-share // -(-share // resources.chunk)))
    if tuned.convolution is not None and context.build is not None:
        model = with_option(config.model, ["convolution"], tuned.convolution)
        task = task_of(
            config.model_copy(update={"model": model}), plan.objects, context.build, *shapes(plan.federation)
        )
        context = context._replace(task=task)
    context = context._replace(engine=tuned.engine or context.engine, resources=resources)
    algorithms = algorithms_of(config, context, plan.objects)
    return plan._replace(context=context, algorithms=algorithms)
