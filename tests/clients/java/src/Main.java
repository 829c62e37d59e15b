import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs cases, several at a time: {@code Main bootstrap-servers case ...}. A case is a public static method of one of the classes
 * in CASES; it is given the cluster and returns what the client saw, which is printed as one line of JSON.
 */
public final class Main {
    private static final List<Class<?>> CASES = List.of(
        Transactions.class, Groups.class, Offsets.class,
        Administration.class, GroupAdministration.class, TransactionAdministration.class, ClientTelemetry.class);
    private static final int CASES_AT_A_TIME = 8;

    public static void main(String[] arguments) throws Exception {
        endWithTheTests();
        Map<String, Method> known = new HashMap<>();
        for (Class<?> each : CASES) {
            for (Method method : each.getDeclaredMethods()) {
                if (Modifier.isPublic(method.getModifiers())) {
                    known.put(method.getName(), method);
                }
            }
        }
        ExecutorService pool = Executors.newFixedThreadPool(CASES_AT_A_TIME);
        try (Cluster cluster = new Cluster(arguments[0])) {
            List<String> names = new ArrayList<>(List.of(arguments).subList(1, arguments.length));
            names.forEach(name -> pool.execute(() -> report(name, known.get(name), cluster)));
            pool.shutdown();
            pool.awaitTermination(1, TimeUnit.HOURS);
        }
    }

    private static void report(String name, Method method, Cluster cluster) {
        String line;
        try {
            if (method == null) {
                throw new IllegalArgumentException("the Java program has no case of this name");
            }
            line = Json.of(Map.of("case", name, "saw", method.invoke(null, cluster)));
        } catch (Throwable failure) {
            Throwable cause = failure instanceof InvocationTargetException ? failure.getCause() : failure;
            StringWriter trace = new StringWriter();
            cause.printStackTrace(new PrintWriter(trace));
            line = Json.of(Map.of("case", name, "failed", trace.toString()));
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static void endWithTheTests() {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // nothing is said on this channel; it only ends
                }
            } catch (IOException gone) {
                // as good as the end
            }
            Runtime.getRuntime().halt(0);
        });
        watch.setDaemon(true);
        watch.start();
    }
}
