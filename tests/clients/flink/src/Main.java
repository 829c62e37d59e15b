import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic exactly once, KafkaSource to KafkaSink: {@code Main bootstrap-servers prefix input output checkpoints records}. The job
 * ends with the last record that the input has at its start; a task fails on purpose in the middle, once.
 */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        String checkpoints = arguments[4];
        long records = Long.parseLong(arguments[5]);
        endWithTheTests();
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 1000);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, java.time.Duration.ofMillis(500));
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + checkpoints);
        settings.set(CheckpointingOptions.TOLERABLE_FAILURE_NUMBER, 1000);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        environment.enableCheckpointing(1000, CheckpointingMode.EXACTLY_ONCE);

        Properties reading = new Properties();
        reading.setProperty("isolation.level", "read_committed");
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0]).setTopics(arguments[2]).setGroupId(arguments[1])
            .setStartingOffsets(OffsetsInitializer.earliest()).setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema()).setProperties(reading).build();
        Properties writing = new Properties();
        writing.setProperty("transaction.timeout.ms", "600000");
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0]).setKafkaProducerConfig(writing)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).setTransactionalIdPrefix(arguments[1])
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(arguments[3]).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source").map(new Passing(records)).sinkTo(sink);
        System.out.println("RUNNING");
        System.out.flush();
        environment.execute(arguments[1]);
        System.out.println("DONE");
        System.out.flush();
    }

    /** Passes records on at a steady pace, so that faults meet a job at work, and fails once half way. */
    private static final class Passing extends RichMapFunction<String, String> {
        private final long records;
        private long passed;
        private boolean fails;

        private Passing(long records) {
            this.records = records;
        }

        @Override
        public void open(OpenContext context) {
            fails = getRuntimeContext().getTaskInfo().getAttemptNumber() == 0
                && getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0;
        }

        @Override
        public String map(String value) throws Exception {
            if (++passed % 100 == 0) {
                Thread.sleep(100);
            }
            if (fails && passed > records / 6) {
                throw new IllegalStateException("this task fails once, on purpose");
            }
            return value;
        }
    }

    private static void endWithTheTests() {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // nothing is said on this channel; it only ends
                }
            } catch (java.io.IOException gone) {
                // as good as the end
            }
            Runtime.getRuntime().halt(0);
        });
        watch.setDaemon(true);
        watch.start();
    }
}
