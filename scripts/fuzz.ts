/*
 * Sends good requests, bad ones and anything else to the built service over raw sockets, and
 * compares every answer with an oracle that reads the same bytes and shares no line with src/. See
 * fuzz/README.md.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { exitOnSignals } from '../test/support/launch.ts'
import { Realm } from '../test/support/oracle/realm.ts'
import { randomSeed, subSeed } from '../test/support/random.ts'
import { Era } from './fuzz/era.ts'
import { type Finding, loadFinding, replaceFinding } from './fuzz/finding.ts'
import { minimize, replay } from './fuzz/replay.ts'
import { Totals } from './fuzz/worker.ts'
import { wholeNumber } from './variables.ts'

/** After this long a new directory is used. */
const ERA_SECONDS = 20
const FINDINGS_MAX = 10
/** Each takes a few seconds. */
const MINIMIZED_MAX = 2

const firstSeed = wholeNumber('SEED', randomSeed(), 0)
const seeds = wholeNumber('SEEDS', 1)
/** For each seed. */
const seconds = wholeNumber('SECONDS', 60)
const replayed = process.env['REPLAY']

const totals = new Totals()

/** Returns how many things were wrong. */
async function fuzzSeed(seed: number): Promise<number> {
  const endMs = performance.now() + seconds * 1000
  const secondsLeft = (): number => (endMs - performance.now()) / 1000
  const realms = Realm.all().length
  const count = Math.max(realms, Math.ceil(seconds / ERA_SECONDS))
  let wrong = 0
  for (let number = 0; number < count && secondsLeft() > 0 && wrong === 0; number++) {
    const realm = Realm.all()[number % realms]
    if (realm) wrong = await runEra(realm, subSeed(seed, number), secondsLeft() / (count - number))
  }
  return wrong
}

async function runEra(realm: Realm, seed: number, eraSeconds: number): Promise<number> {
  const root = await mkdtemp(join(tmpdir(), 'plant-store-fuzz-'))
  const era = new Era(realm, root, seed, totals)
  await era.run(eraSeconds)
  totals.eras += 1
  for (const complaint of era.complaints.slice(0, 20))
    console.error(`COMPLAINT (${realm.name}): ${complaint}`)
  if (era.complaints.length === 0) await rm(root, { recursive: true })
  else console.error(`the directory is left: ${root}`)
  for (const [index, [finding, file]] of era.findings.slice(0, FINDINGS_MAX).entries()) {
    const smallest = index < MINIMIZED_MAX ? await minimize(finding) : finding
    replaceFinding(file, smallest)
    showFinding(smallest, file)
  }
  return era.findings.length + era.complaints.length
}

async function fuzz(): Promise<number> {
  const startedAtMs = performance.now()
  let wrong = 0
  for (let seed = firstSeed; seed < firstSeed + seeds; seed++) {
    console.log(`${seconds} s, seed ${seed}`)
    const found = await fuzzSeed(seed)
    wrong += found
    if (seeds > 1) console.log(`findings ${found}, requests so far ${totals.requests}`)
  }
  const rate = Math.round((totals.requests * 1000) / (performance.now() - startedAtMs))
  const { requests, connections, mutated, unclear, lost, owners, kills, eras } = totals
  const statuses = [...totals.statuses].sort(([a], [b]) => a - b)
  // Fewer than requests: some follow a last one, and some clients leave before the answer.
  const answers = statuses.reduce((sum, [, count]) => sum + count, 0)
  console.log(`requests ${requests}, of which answered ${answers}, ${rate} a second
connections ${connections}: mutated ${mutated}, unclear ${unclear}, last answers reset ${lost}
answers ${statuses.map(([status, count]) => `${status}: ${count}`).join(', ')}
owners compared ${owners}, kills ${kills}, eras ${eras}
findings ${wrong}, seeds ${firstSeed} to ${firstSeed + seeds - 1}`)
  return wrong === 0 ? 0 : 1
}

function showFinding({ what, realm, script }: Finding, file: string): void {
  const text = JSON.stringify(script.text)
  const shown = text.length > 6000 ? `${text.slice(0, 6000)} …` : text
  console.error(`FINDING (${realm}): ${what}\n${shown}
${script.ending}, ${script.cuts.length + 1} writes; make fuzz REPLAY=${file}\n`)
}

async function repeat(file: string): Promise<number> {
  const what = await replay(loadFinding(file))
  console.log(what ?? 'nothing is wrong with it any more')
  return what === undefined ? 0 : 1
}

exitOnSignals()
// A process that a failure left running must not keep this one alive.
process.exit(await (replayed ? repeat(replayed) : fuzz()))
