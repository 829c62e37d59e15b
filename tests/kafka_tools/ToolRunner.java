import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in this process, as their scripts would in one each.
 *
 * <p>A line of standard input is a call, {"main": class, "arguments": [...], "input": text, "timeout_ms": n}; the answer is a line
 * {"code": n, "out": text, "err": text}, with "late": true for a tool that did not end in time.  What a tool prints after it asked
 * to exit does not count: a real process would be gone.  With "alone": true the tool has this process for itself, and has not ended
 * before the threads that it started have.  Ends with its input.
 */
public final class ToolRunner {
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** One tool at work.  Its first exit, or its end, decides. */
    private static final class Call {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final List<Thread> hooks = new ArrayList<>();
        private String outText;
        private String errText;
        private int code;

        synchronized void end(int status) {
            if (outText == null) {
                code = status;
                outText = out.toString(StandardCharsets.UTF_8);
                errText = err.toString(StandardCharsets.UTF_8);
            }
        }

        synchronized boolean ended() {
            return outText != null;
        }

        synchronized ObjectNode answer(ObjectNode node, boolean late) {
            return node.put("code", code).put("out", outText).put("err", errText).put("late", late);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            answers.println(json.writeValueAsString(run(json.readTree(line), json.createObjectNode())));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode run(JsonNode wanted, ObjectNode node) throws Exception {
        Call call = new Call();
        List<String> arguments = new ArrayList<>();
        wanted.get("arguments").forEach(each -> arguments.add(each.asText()));
        PrintStream out = new PrintStream(call.out, true, StandardCharsets.UTF_8);
        PrintStream err = new PrintStream(call.err, true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(err);
        System.setIn(new ByteArrayInputStream(wanted.path("input").asText("").getBytes(StandardCharsets.UTF_8)));
        Exit.setExitProcedure((status, message) -> {
            call.end(status);
            throw new Exited();
        });
        Exit.setHaltProcedure((status, message) -> {
            call.end(status);
            throw new Exited();
        });
        Exit.setShutdownHookAdder((name, hook) -> call.hooks.add(new Thread(hook, name)));
        boolean alone = wanted.path("alone").asBoolean(false);
        Thread tool = new Thread(() -> call(wanted.get("main").asText(), arguments.toArray(new String[0]), call, alone), "tool");
        tool.setDaemon(true);
        tool.start();
        tool.join(wanted.path("timeout_ms").asLong(60_000));
        boolean late = tool.isAlive();
        for (Thread hook : call.hooks) {
            hook.start();
            hook.join(10_000);
        }
        if (late) {
            StringBuilder where = new StringBuilder();
            for (StackTraceElement each : tool.getStackTrace()) {
                where.append("    at ").append(each).append('\n');
            }
            tool.interrupt();
            tool.join(5_000);
            node.put("where", where.toString());
        }
        call.end(-1);
        return call.answer(node, late);
    }

    private static boolean threadsAreLeft() {
        return Thread.getAllStackTraces().keySet().stream()
            .anyMatch(each -> !each.isDaemon() && !each.getName().equals("main") && !each.getName().equals("DestroyJavaVM"));
    }

    private static void call(String name, String[] arguments, Call call, boolean alone) {
        try {
            Method main = Class.forName(name).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments);
            while (alone && !call.ended() && threadsAreLeft()) {
                Thread.sleep(100);
            }
            call.end(0);
        } catch (InterruptedException late) {
            call.end(-1);
        } catch (InvocationTargetException failed) {
            if (!(failed.getCause() instanceof Exited)) {
                failed.getCause().printStackTrace(System.err);
            }
            call.end(1);
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace(System.err);
            call.end(127);
        }
    }
}
