// lockfence with Jedis.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.concurrent.CompletableFuture;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;

class LockfenceJedis {
    static final String LOCK = "lock:{acct:7}", BALANCE = "{acct:7}:balance";
    static final ProtocolCommand ACQUIRE = () -> "LOCK.ACQUIRE".getBytes(UTF_8);
    static final ProtocolCommand RELEASE = () -> "LOCK.RELEASE".getBytes(UTF_8);
    static final ProtocolCommand WRITE = () -> "FENCE.WRITE".getBytes(UTF_8);

    static Jedis connect() {
        return new Jedis("127.0.0.1", Integer.parseInt(System.getenv().getOrDefault("REDIS_PORT", "6379")));
    }

    static String newOwner() {
        byte[] bytes = new byte[16];
        new SecureRandom().nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    public static void main(String[] args) {
        try (Jedis alice = connect(); Jedis bob = connect()) {
            String aliceOwner = newOwner(), bobOwner = newOwner();

            Long aliceToken = (Long) alice.sendCommand(ACQUIRE, LOCK, aliceOwner, "30000");
            if (aliceToken == null) {
                throw new IllegalStateException("somebody else has the lock");
            }
            System.out.println("alice " + aliceToken);

            // A request that waits keeps its connection to itself; sendBlockingCommand sets no time-out on the socket.
            var granted = CompletableFuture.supplyAsync(
                    () -> (Long) bob.sendBlockingCommand(ACQUIRE, LOCK, bobOwner, "30000", "WAIT", "10000"));

            alice.sendCommand(WRITE, LOCK, aliceToken.toString(), BALANCE, "100");
            alice.sendCommand(RELEASE, LOCK, aliceOwner);
            Long bobToken = granted.join();
            System.out.println("bob " + bobToken);

            try {
                alice.sendCommand(WRITE, LOCK, aliceToken.toString(), BALANCE, "101");
            } catch (JedisDataException error) {
                System.out.println("fenced " + error.getMessage().startsWith("FENCED"));
            }

            bob.sendCommand(WRITE, LOCK, bobToken.toString(), BALANCE, "250");
            System.out.println("balance " + alice.get(BALANCE));
            bob.sendCommand(RELEASE, LOCK, bobOwner);
        }
    }
}
