// lockfence with node-redis. Tokens are below 2^53: numbers hold them exactly.
import { randomBytes } from 'node:crypto';
import { createClient } from 'redis';

const LOCK = 'lock:{acct:7}';
const BALANCE = '{acct:7}:balance';
const port = Number(process.env.REDIS_PORT ?? 6379);
const connect = () => createClient({ socket: { host: '127.0.0.1', port } }).connect();
const owner = () => randomBytes(16).toString('hex');

// A request that waits blocks its connection: Bob has one of his own.
const [alice, bob] = [await connect(), await connect()];
const [aliceOwner, bobOwner] = [owner(), owner()];

const aliceToken = await alice.sendCommand(['LOCK.ACQUIRE', LOCK, aliceOwner, '30000']);
if (aliceToken === null) throw new Error('somebody else has the lock');
console.log('alice', aliceToken);
const waiting = bob.sendCommand(['LOCK.ACQUIRE', LOCK, bobOwner, '30000', 'WAIT', '10000']);

await alice.sendCommand(['FENCE.WRITE', LOCK, String(aliceToken), BALANCE, '100']);
await alice.sendCommand(['LOCK.RELEASE', LOCK, aliceOwner]);
const bobToken = await waiting;
console.log('bob', bobToken);

try {
  await alice.sendCommand(['FENCE.WRITE', LOCK, String(aliceToken), BALANCE, '101']);
} catch (error) {
  console.log('fenced', error.message.startsWith('FENCED'));
}

await bob.sendCommand(['FENCE.WRITE', LOCK, String(bobToken), BALANCE, '250']);
console.log('balance', await alice.get(BALANCE));
await bob.sendCommand(['LOCK.RELEASE', LOCK, bobOwner]);
await Promise.all([alice.quit(), bob.quit()]);
