import { join } from 'node:path'
import { run } from '../../test/support/process.ts'
import { keepFinding } from './finding.ts'
import { plantsOf } from './form.ts'
import { Owner, SharedOwner } from './model.ts'
import { Service } from './process.ts'
import type { Realm } from './realm.ts'
import { talk } from './talk.ts'
import type { World } from './witness.ts'
import { type Finding, type Totals, Worker } from './worker.ts'

const WORKERS = 48
const SHARED_OWNERS = 2
/**
 * Connections that are too slow for the service, which takes it 10 s to say: a short era has no
 * time for them.
 */
const STALLED = 4
const STALLED_MIN_SECONDS = 15
/** Lists that are asked for on one connection. */
const LISTS_AT_ONCE = 50
const LISTING_CONNECTIONS = 4

/**
 * One data directory under one configuration: traffic, SIGKILL in the middle of it, a start,
 * traffic again, a stop in peace; and all lists compared behind each.
 */
export class Era {
  readonly #world: World
  readonly #root: string
  readonly #totals: Totals
  readonly #workers: readonly Worker[]
  readonly #stalled: readonly Worker[]
  /** Each with the file that it is kept in. */
  readonly findings: (readonly [finding: Finding, file: string])[] = []
  readonly complaints: string[] = []
  kills = 0

  constructor(realm: Realm, root: string, seed: number, totals: Totals) {
    const shared = Array.from(
      { length: SHARED_OWNERS },
      (_, at) => new SharedOwner(`all ${at}`, realm.tokenOf(`all ${at}`)),
    )
    this.#world = {
      realm,
      owners: new Map(),
      shared: new Map(shared.map((owner) => [owner.name, owner])),
    }
    this.#root = root
    this.#totals = totals
    const forged = realm.forged('all 0')
    const workers = Array.from(
      { length: WORKERS + STALLED },
      (_, number) => new Worker(this.#world, seed, number, forged),
    )
    this.#workers = workers.slice(0, WORKERS)
    this.#stalled = workers.slice(WORKERS)
  }

  get owners(): number {
    return this.#world.owners.size + this.#world.shared.size
  }

  get #failed(): boolean {
    return this.findings.length > 0 || this.complaints.length > 0
  }

  async run(seconds: number): Promise<void> {
    const env = {
      ...this.#world.realm.environment(this.#root),
      PLANTS_DATA: join(this.#root, 'data'),
    }
    const startedAt = performance.now()
    for (const share of [0.45, 0.9]) {
      const { service, port } = await Service.start(env)
      const isLast = share > 0.5
      try {
        // What a killed service has left is compared first.
        if (isLast) await this.#verify(port)
        if (!this.#failed)
          await this.#traffic(
            service,
            port,
            Math.max(500, seconds * 1000 * share - (performance.now() - startedAt)),
            isLast ? (seconds < STALLED_MIN_SECONDS ? [] : this.#stalled) : 'kill',
          )
        if (isLast && !this.#failed) await this.#verify(port)
      } finally {
        const code = await service.kill(isLast && !this.#failed ? 'SIGTERM' : 'SIGKILL')
        if (isLast && !this.#failed && code !== 0)
          this.complaints.push(`SIGTERM ended the service with ${code}`)
        this.complaints.push(...service.complaints)
      }
      if (this.#failed) return
      const { status, stdout, stderr } = await run(['check'], { PLANTS_DATA: env.PLANTS_DATA })
      if (status !== 0) this.complaints.push(`check: ${stdout}${stderr}`)
    }
  }

  /**
   * SIGKILL comes in the middle of it, or it lasts until the service has given up on those who
   * stall.
   */
  async #traffic(
    service: Service,
    port: number,
    ms: number,
    end: 'kill' | readonly Worker[],
  ): Promise<void> {
    const startedAt = performance.now()
    let over = false
    let killed = false
    const take = (finding: Finding | undefined): void => {
      if (!finding) return
      const file = keepFinding(finding)
      console.error(
        `found after ${((performance.now() - startedAt) / 1000).toFixed(1)} s: ${finding.what.slice(0, 200)}\nmake fuzz REPLAY=${file}`,
      )
      this.findings.push([finding, file])
    }
    const stalled =
      end === 'kill' ? [] : end.map(async (worker) => take(await worker.stall(port, this.#totals)))
    const timer = setTimeout(() => {
      if (end === 'kill') {
        killed = true
        this.kills += 1
        void service.kill('SIGKILL')
      }
      void Promise.all(stalled).then(() => (over = true))
    }, ms)
    await Promise.all([
      ...stalled,
      ...this.#workers.map(async (worker) => {
        while (!over && !killed && !this.#failed && service.complaints.length === 0)
          take(await worker.step(port, this.#totals, () => killed))
      }),
    ])
    clearTimeout(timer)
  }

  /** Nothing is being sent: every list must be just what its owner was told. */
  async #verify(port: number): Promise<void> {
    const all: (Owner | SharedOwner)[] = [
      ...this.#world.owners.values(),
      ...this.#world.shared.values(),
    ]
    const next = async (): Promise<void> => {
      for (;;) {
        const owners = all.splice(0, LISTS_AT_ONCE)
        if (owners.length === 0) return
        await this.#compareLists(port, owners)
      }
    }
    await Promise.all(Array.from({ length: LISTING_CONNECTIONS }, next))
  }

  async #compareLists(port: number, owners: readonly (Owner | SharedOwner)[]): Promise<void> {
    const text = owners
      .map(
        ({ token }) => `GET /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n\r\n`,
      )
      .join('')
    const { answers, flaw } = await talk(
      port,
      { text, cuts: [], ending: 'half-close', sendOnly: 0, pauseMs: 0, readsLate: false },
      owners.length,
      () => false,
    )
    if (flaw !== undefined || answers.length !== owners.length)
      this.complaints.push(`${answers.length} lists of ${owners.length}: ${flaw ?? ''}`)
    for (const [index, owner] of owners.entries()) {
      const answer = answers[index]
      const mayRead = this.#world.realm.grants.get(owner.token)?.read === true
      if (answer === undefined || answer.status !== (mayRead ? 200 : 403))
        this.complaints.push(`${owner.name}'s list: ${answer?.status}`)
      else if (mayRead) this.#compareList(owner, answer.body)
    }
  }

  #compareList(owner: Owner | SharedOwner, body: string): void {
    const listed = plantsOf(body)
    if (owner instanceof SharedOwner) {
      const flaw = owner.flaw(listed, owner.acknowledged)
      if (flaw !== undefined) this.complaints.push(`${owner.name} ${flaw}`)
    } else if (!owner.explains(listed)) {
      const known = [...owner.plants].map(([id, plant]) => `${id}: ${JSON.stringify(plant)}`)
      this.complaints.push(
        `${JSON.stringify(owner.name)} lists ${body.slice(0, 1000)}\nand was told ${known.join(', ').slice(0, 1000)}, ${owner.open.size} left open`,
      )
    }
  }
}
