// What a client does on our server, case by case: `node PROGRAM.mjs URL` prints one line of JSON for each case, which a
// test reads. An error is an outcome too: it fails its own case's test and no other.

export const url = process.argv[2];

export async function run(cases) {
  for (const [name, action] of Object.entries(cases)) {
    console.log(JSON.stringify({ case: name, ...(await outcome(action)) }));
  }
}

async function outcome(action) {
  try {
    return { result: await action() };
  } catch (error) {
    return { error: `${error?.stack ?? error}\n${JSON.stringify(error, null, 1)}` };
  }
}

export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

// What an attempt that must fail says.
export async function refusal(attempt) {
  try {
    await attempt();
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? error.statusCode, code: error.code, message: error.message };
  }
  return null;
}
