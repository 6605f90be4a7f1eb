// Usage: node ask.mjs HOST:PORT PATH_TO_PROTO_ROOT QUESTION
// Sends nothing but `messages` and prints one JSON line per event of the answer, as it arrives.
import { credentials, loadPackageDefinition } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

const [target, protoRoot, question] = process.argv.slice(2);
const definition = loadSync('soloist/v1/chat.proto', { includeDirs: [protoRoot], longs: String, enums: String, oneofs: true });
const { ChatService } = loadPackageDefinition(definition).soloist.v1;

const client = new ChatService(target, credentials.createInsecure());
const call = client.chat({ messages: [{ role: 'ROLE_USER', content: question }] }, { deadline: Date.now() + 60_000 });
call.on('data', (event) => console.log(JSON.stringify({ kind: event.event, at: performance.now(), ...event })));
call.on('error', (error) => {
  console.error(`${error.code}: ${error.details}`);
  process.exitCode = 1;
});
call.on('end', () => client.close());
