/*
 * Measures what the built service costs in one scenario: `make measure SCENARIO=stalls`. Without a
 * scenario this prints the list.
 */
import { exitOnSignals } from '../test/support/launch.ts'

const SCENARIOS: Readonly<Record<string, string>> = {
  stalls: 'how long others wait while one owner attacks; SECONDS=n each, NAMED=text some',
  strangers: 'how long owners wait beside RATE=n bad signatures a second; KEYS=n, SECONDS=n',
  memory: 'memory of clients that make the service hold what they can; NAMED=text some',
  sizing: 'memory and start by number of plants, and what small containers hold',
  json: 'time to read a body by shape and length',
}

const name = process.argv[2]
if (name !== undefined && Object.hasOwn(SCENARIOS, name)) {
  exitOnSignals()
  // Each file of the folder that is named above has this function.
  const { measure }: { measure(): Promise<void> } = await import(`./measure/${name}.ts`)
  await measure()
  process.exit()
}
console.log('make measure SCENARIO=')
for (const [key, what] of Object.entries(SCENARIOS)) console.log(`  ${key.padEnd(12)} ${what}`)
if (name !== undefined) process.exitCode = 2
