import assert from 'node:assert/strict'
import { call } from './http.ts'
import { until } from './time.ts'

export interface Scrape {
  readonly text: string
  /** By name and labels, as written. */
  readonly samples: ReadonlyMap<string, number>
  /** The types by name. */
  readonly types: ReadonlyMap<string, string>
  /** The value of a sample by name and labels; fails if it is not there. */
  value(sample: string): number
  /** Every sample whose name and labels begin so. */
  all(prefix: string): readonly (readonly [string, number])[]
}

const NAME = '[a-zA-Z_:][a-zA-Z0-9_:]*'
const LABEL = '[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\\\\n]|\\\\[\\\\"n])*"'
const LABELS = `(?:\\{${LABEL}(?:,${LABEL})*\\})?`
const SAMPLE = new RegExp(`^(${NAME})(${LABELS}) ([+-]?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Inf)|NaN)$`)

/**
 * Reads the text format of version 0.0.4 strictly: every family once, named and typed before its
 * samples, and none of them twice.
 */
export function readMetrics(text: string): Scrape {
  const samples = new Map<string, number>()
  const types = new Map<string, string>()
  let family = ''
  let named = ''
  assert.ok(text.endsWith('\n'))
  for (const line of text.slice(0, -1).split('\n')) {
    const [, kind, name = '', rest = ''] = /^# (HELP|TYPE) (\S+) (.+)$/.exec(line) ?? []
    if (kind === 'HELP') named = name
    else if (kind === 'TYPE') {
      assert.equal(named, name, 'help comes before the type')
      assert.ok(!types.has(name), `${name} is there twice`)
      types.set(name, rest)
      family = name
    } else {
      const [, sampleName = '', labels = '', value = ''] =
        SAMPLE.exec(line) ?? assert.fail(`no sample: ${line}`)
      assert.ok(
        sampleName === family ||
          (types.get(family) === 'histogram' &&
            /^_(bucket|sum|count)$/.test(sampleName.slice(family.length))),
        `${sampleName} in the family ${family}`,
      )
      assert.ok(!samples.has(sampleName + labels), `${line} is there twice`)
      samples.set(sampleName + labels, Number(value.replace('Inf', 'Infinity')))
    }
  }
  return {
    text,
    samples,
    types,
    value: (sample) => samples.get(sample) ?? assert.fail(`there is no ${sample}`),
    all: (prefix) => [...samples].filter(([sample]) => sample.startsWith(prefix)),
  }
}

export async function scrape(admin: number | string): Promise<Scrape> {
  const reply = await call(admin, { path: '/metrics', token: undefined })
  assert.equal(reply.status, 200)
  assert.equal(reply.headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8')
  return readMetrics(reply.text)
}

/** Waits until the service has read this many requests' headers, and answered none of them. */
export function underWay(admin: number | string, requests: number): Promise<void> {
  return until(
    `${requests} requests are under way`,
    async () => (await scrape(admin)).value('http_server_active_requests') === requests,
  )
}
