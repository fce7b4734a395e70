"""What may go wrong in a run, from its configuration: attackers in the federation, and unreliable clients."""

from jcfl import registry
from jcfl.core.attacks import Attack
from jcfl.core.faults import Faults
from jcfl.data import hostile
from jcfl.runs.config import Config
from jcfl.types import Federation


def faults_of(config: Config) -> Faults:
    """What may go wrong in a run, as its configuration says."""
    attack, reliability = (
        registry.find(section, piece.name)(**piece.options)
        for section, piece in (("attack", config.attack), ("reliability", config.reliability))
    )
    return Faults(attack, reliability, config.on_divergence)


def attacked(federation: Federation, attack: Attack, config: Config) -> Federation:
    """The federation with its attackers, drawn by the seed of the federation, and with their labels."""
    if not attack.share:
        return federation
    federation = hostile.with_attackers(federation, attack.share, config.scenario.options.get("seed", config.seed))
    return hostile.with_flipped_labels(federation) if attack.flips else federation
