/*
 * Speaks to the built service over raw sockets, in good requests, bad ones, and what is neither,
 * and holds every answer against a model of its own, which reads what was sent byte by byte and
 * shares no line with src/. What is acknowledged must be listed, for its owner alone, after SIGKILL
 * too; what is refused must not.
 */
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Era } from './fuzz/era.ts'
import { replaceFinding } from './fuzz/finding.ts'
import { subSeed } from './fuzz/random.ts'
import { Realm } from './fuzz/realm.ts'
import { minimize, replay } from './fuzz/replay.ts'
import type { Finding, Totals } from './fuzz/worker.ts'

/** A directory is left for a fresh one after so long. */
const ERA_SECONDS = 20
const FINDINGS_MAX = 10
/** Each costs a few seconds. */
const MINIMIZED_MAX = 2

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    seed: { type: 'string' },
    seeds: { type: 'string', default: '1' },
    replay: { type: 'string' },
  },
})
const firstSeed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31))
const seeds = Number(values.seeds)
/** For each seed. */
const seconds = Number(values.seconds)

const totals: Totals = {
  requests: 0,
  connections: 0,
  statuses: new Map(),
  mutated: 0,
  unclear: 0,
  lost: 0,
}
let [owners, kills, eras, wrong] = [0, 0, 0, 0]

/**
 * Fewer than requests: some are behind a last one, and some clients go before they are answered, or
 * before they have sent all.
 */
function answers(): number {
  return [...totals.statuses.values()].reduce((sum, count) => sum + count, 0)
}

/** Gives how many things were wrong. */
async function fuzzSeed(seed: number): Promise<number> {
  const findings: (readonly [Finding, file: string])[] = []
  const complaints: string[] = []
  const startedAt = performance.now()
  const left = (): number => seconds - (performance.now() - startedAt) / 1000
  const count = Math.max(Realm.all().length, Math.ceil(seconds / ERA_SECONDS))
  for (
    let number = 0;
    number < count && left() > 0 && findings.length < FINDINGS_MAX && complaints.length === 0;
    number++
  ) {
    const realms = Realm.all()
    const realm = realms[number % realms.length] ?? realms[0]
    const root = await mkdtemp(join(tmpdir(), 'plant-store-fuzz-'))
    const era = new Era(realm, root, subSeed(seed, number), totals)
    await era.run(left() / (count - number))
    findings.push(...era.findings)
    complaints.push(...era.complaints)
    owners += era.owners
    kills += era.kills
    eras += 1
    for (const complaint of era.complaints.slice(0, 20))
      console.error(`COMPLAINT (${realm.name}): ${complaint}`)
    if (era.complaints.length === 0) await rm(root, { recursive: true })
    else console.error(`the directory is left: ${root}`)
  }
  for (const [index, [finding, file]] of findings.slice(0, FINDINGS_MAX).entries()) {
    const smallest = index < MINIMIZED_MAX ? await minimize(finding) : finding
    replaceFinding(file, smallest)
    tell(smallest, file)
  }
  return findings.length + complaints.length
}

async function fuzz(): Promise<number> {
  const startedAt = performance.now()
  for (let seed = firstSeed; seed < firstSeed + seeds; seed++) {
    const [before, answered] = [totals.requests, answers()]
    console.log(`${seconds} s, seed ${seed}`)
    const found = await fuzzSeed(seed)
    wrong += found
    if (seeds > 1)
      console.log(
        `requests ${totals.requests - before}, of which answered ${answers() - answered}, findings ${found}, seed ${seed}`,
      )
  }
  const took = (performance.now() - startedAt) / 1000
  const statuses = [...totals.statuses]
    .sort(([a], [b]) => a - b)
    .map(([status, count]) => `${status}: ${count}`)
  console.log(`requests ${totals.requests}, of which answered ${answers()}, ${Math.round(totals.requests / took)} a second; connections ${totals.connections}, of which mutated ${totals.mutated}, unclear ${totals.unclear}, reset behind their last request ${totals.lost}
answers ${statuses.join(', ')}
owners compared ${owners}, kills ${kills}, eras ${eras}
findings ${wrong}, ${seeds > 1 ? `seeds ${firstSeed} to ${firstSeed + seeds - 1}` : `seed ${firstSeed}`}`)
  return wrong === 0 ? 0 : 1
}

function tell({ what, realm, script }: Finding, file: string): void {
  const text = JSON.stringify(script.text)
  console.error(
    `FINDING (${realm}): ${what}\n${text.slice(0, 6000)}${text.length > 6000 ? ' …' : ''}\n${script.ending}, ${script.cuts.length + 1} writes; make fuzz REPLAY=${file}\n`,
  )
}

async function repeat(file: string): Promise<number> {
  // Written by keepFinding.
  const finding = JSON.parse(await readFile(file, 'utf8')) as Finding
  const what = await replay(finding)
  console.log(what ?? 'nothing is wrong with it any more')
  return what === undefined ? 0 : 1
}

if (
  !Number.isFinite(seconds) ||
  seconds <= 0 ||
  !Number.isSafeInteger(firstSeed) ||
  !Number.isSafeInteger(seeds) ||
  seeds < 1
) {
  console.error(
    '--seconds must be a number, more than 0, --seed a whole number, and --seeds one from 1 on',
  )
  process.exitCode = 2
} else {
  process.exitCode = await (values.replay === undefined ? fuzz() : repeat(values.replay))
}
// A service that was left behind by a failure must not keep this one alive.
await sleep(0)
