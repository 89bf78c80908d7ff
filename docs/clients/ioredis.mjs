// lockfence with ioredis. Tokens are below 2^53: numbers hold them exactly.
import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';

const LOCK = 'lock:{acct:7}';
const BALANCE = '{acct:7}:balance';
const port = Number(process.env.REDIS_PORT ?? 6379);
const owner = () => randomBytes(16).toString('hex');

// A request that waits blocks its connection: Bob has one of his own.
const [alice, bob] = [new Redis(port), new Redis(port)];
const [aliceOwner, bobOwner] = [owner(), owner()];

const aliceToken = await alice.call('LOCK.ACQUIRE', LOCK, aliceOwner, 30000);
if (aliceToken === null) throw new Error('somebody else has the lock');
console.log('alice', aliceToken);
const waiting = bob.call('LOCK.ACQUIRE', LOCK, bobOwner, 30000, 'WAIT', 10000);

await alice.call('FENCE.WRITE', LOCK, aliceToken, BALANCE, 100);
await alice.call('LOCK.RELEASE', LOCK, aliceOwner);
const bobToken = await waiting;
console.log('bob', bobToken);

try {
  await alice.call('FENCE.WRITE', LOCK, aliceToken, BALANCE, 101);
} catch (error) {
  console.log('fenced', error.message.startsWith('FENCED'));
}

await bob.call('FENCE.WRITE', LOCK, bobToken, BALANCE, 250);
console.log('balance', await alice.get(BALANCE));
await bob.call('LOCK.RELEASE', LOCK, bobOwner);
await Promise.all([alice.quit(), bob.quit()]);
