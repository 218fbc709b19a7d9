"""Who asks: what a token, the settings or an address allow. Values, and no I/O."""

from typing import Self

import msgspec

from rowmq.message import RunningInfo, WorkerInfo
from rowmq.rights import EVERYTHING, Role, TokenInfo, digest_of, hash_of, within
from rowmq.web.problems import Problem

__all__ = ["Caller"]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody with roles, and with the topics and queues that they are for."""

    name: str
    roles: frozenset[Role] = frozenset()
    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    token_id: int | None = None
    digest: str = ""
    """What tells a token from all others, of other databases too; empty for who has none."""

    @classmethod
    def nobody(cls) -> Self:
        """Somebody of whom nothing is known."""
        return cls(name="")

    @classmethod
    def loopback(cls) -> Self:
        """Whoever sits at this machine, as long as there is no token."""
        return cls(
            name="(loopback)", roles=frozenset({Role.ADMIN}), topics=EVERYTHING, queues=EVERYTHING
        )

    @classmethod
    def operator(cls, secret: str) -> Self:
        """Whoever knows the token of the settings."""
        return cls(
            name="(settings)",
            roles=frozenset({Role.ADMIN}),
            topics=EVERYTHING,
            queues=EVERYTHING,
            digest=digest_of(hash_of(secret)),
        )

    @classmethod
    def of(cls, token: TokenInfo) -> Self:
        """Whoever knows the secret of a token."""
        return cls(
            name=token.name,
            roles=token.roles,
            topics=token.topics,
            queues=token.queues,
            token_id=token.id,
            digest=token.digest,
        )

    @property
    def known(self) -> bool:
        """Whether it is anybody in particular."""
        return bool(self.name)

    @property
    def sees_everything(self) -> bool:
        """Whether every topic and every queue is in scope."""
        return "*" in self.topics and "*" in self.queues

    def may(self, role: Role | str) -> bool:
        """Whether they have a role; who may administer may do everything."""
        return role in self.roles or Role.ADMIN in self.roles

    def sees_topic(self, name: str) -> bool:
        """Whether a topic is in scope."""
        return within(name, self.topics)

    def sees_queue(self, name: str) -> bool:
        """Whether a queue is in scope."""
        return within(name, self.queues)

    def sees(self, queue: str | None, topic: str | None) -> bool:
        """Whether the queue, or else the topic, that something goes to is in scope."""
        if queue is not None:
            return self.sees_queue(queue)
        return topic is not None and self.sees_topic(topic)

    def sees_running(self, one: RunningInfo) -> bool:
        """Whether what a worker is at is in scope. A worker that does not say whether that is a
        topic or a queue may mean either, so both have to be.
        """
        if one.source_type is None:
            return self.sees_topic(one.source) and self.sees_queue(one.source)
        sees = self.sees_queue if one.source_type == "queue" else self.sees_topic
        return sees(one.source)

    def worker_seen(self, worker: WorkerInfo) -> WorkerInfo:
        """A worker without what is out of scope. Its handlers are not known by what they handle,
        so they are for who sees everything.
        """
        return msgspec.structs.replace(
            worker,
            running=tuple(filter(self.sees_running, worker.running)),
            handlers=worker.handlers if self.sees_everything else (),
        )

    def demand(
        self,
        role: Role | None = None,
        *,
        topic: str | None = None,
        queue: str | None = None,
        everything: bool = False,
    ) -> None:
        """Raise `Problem` if anything of that is lacking."""
        if role is not None and not self.may(role):
            raise Problem(403, f"this needs the role {role}", kind="role-missing", role=str(role))
        if topic is not None and not self.sees_topic(topic):
            raise Problem(403, "this topic is not in the scope of your token", kind="out-of-scope")
        if queue is not None and not self.sees_queue(queue):
            raise Problem(403, "this queue is not in the scope of your token", kind="out-of-scope")
        if everything and not self.sees_everything:
            raise Problem(
                403,
                "this concerns all topics and queues, and your token is for some of them",
                kind="out-of-scope",
            )
