"""lockfence with redis-py."""

import os
import secrets
import sys
import threading

import redis

LOCK, BALANCE = "lock:{acct:7}", "{acct:7}:balance"


def connect():
    # A request that waits blocks its connection: the socket's time-out must be longer than WAIT.
    port = int(os.environ.get("REDIS_PORT", "6379"))
    return redis.Redis(port=port, decode_responses=True, socket_timeout=15)


alice, bob = connect(), connect()
alice_owner, bob_owner = secrets.token_hex(16), secrets.token_hex(16)

alice_token = alice.execute_command("LOCK.ACQUIRE", LOCK, alice_owner, 30_000)
if alice_token is None:
    sys.exit("somebody else has the lock")
print("alice", alice_token)

granted = []
waiter = threading.Thread(
    target=lambda: granted.append(
        bob.execute_command("LOCK.ACQUIRE", LOCK, bob_owner, 30_000, "WAIT", 10_000)
    )
)
waiter.start()

alice.execute_command("FENCE.WRITE", LOCK, alice_token, BALANCE, 100)
alice.execute_command("LOCK.RELEASE", LOCK, alice_owner)
waiter.join()
bob_token = granted[0]
print("bob", bob_token)

try:
    alice.execute_command("FENCE.WRITE", LOCK, alice_token, BALANCE, 101)
except redis.ResponseError as error:
    print("fenced", str(error).startswith("FENCED"))

bob.execute_command("FENCE.WRITE", LOCK, bob_token, BALANCE, 250)
print("balance", alice.get(BALANCE))
bob.execute_command("LOCK.RELEASE", LOCK, bob_owner)
