"""Every guard that can be turned off."""

from tests.mutants.abuse import GUARDS as ABUSE
from tests.mutants.consuming import GUARDS as CONSUMING
from tests.mutants.others import GUARDS as OTHERS
from tests.mutants.publishing import GUARDS as PUBLISHING
from tests.mutants.queues import GUARDS as QUEUES

__all__ = ["MUTANTS"]

MUTANTS = (*PUBLISHING, *CONSUMING, *QUEUES, *OTHERS, *ABUSE)
