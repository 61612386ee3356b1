import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import type { TestContext } from 'node:test'
import { serving } from './serving.ts'

/** A status with JSON, or with text as it is; no answer at all; a connection cut in mid-answer. */
export type FakeReply = readonly [status: number, body: unknown] | 'hang' | 'cut'

/** A request, as it was received. */
export interface Asked {
  readonly path: string
  readonly body: string
  readonly headers: IncomingHttpHeaders
}

/** How much the fakes of a test have put: they are one cluster. */
const puts = new WeakMap<TestContext, number>()

type EtcdResponse = (asked: Asked) => FakeReply | undefined | Promise<FakeReply>

/** In the answers of a fake its revision is that of a cluster in which each PUT has put. */
export const HEADER = { cluster_id: '1', member_id: '2', revision: '7', raft_term: '3' }
/** What a member that has refused a put is asked: a read names its cluster. */
const CHECK = JSON.stringify({ key: base64('plants/') })
export const PUT = ok({
  succeeded: true,
  responses: [{ response_put: { header: { revision: '7' } } }],
})

export function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}

export function ok(members: object = {}): FakeReply {
  return [200, { header: HEADER, ...members }]
}

export function refused(status: number, message: string, code: number): FakeReply {
  return [status, { error: message, message, code }]
}

/** A plant of alice's, by the last part of its key. */
export function kv(id: string, plant: unknown): object {
  const value = base64(JSON.stringify(plant))
  const revisions = { create_revision: '5', mod_revision: '5', version: '1' }
  return { key: base64(`plants/YWxpY2U/${id}`), ...revisions, value }
}

/** The keys that a transaction puts. */
export function keysPut({ body }: Asked): readonly string[] {
  // The store's own request.
  const { success = [] } = JSON.parse(body) as {
    readonly success?: readonly { readonly request_put?: { readonly key: string } }[]
  }
  const keys = success.flatMap((each) => each.request_put?.key ?? [])
  return keys.map((key) => Buffer.from(key, 'base64').toString())
}

/** Answers as a real etcd does. */
export function passOn(endpoint = ''): (asked: Asked) => Promise<FakeReply> {
  return async ({ path, body, headers: { authorization } }) => {
    const headers = authorization === undefined ? {} : { authorization }
    const answer = await fetch(endpoint + path, { method: 'POST', body, headers })
    return [answer.status, await answer.text()]
  }
}

/**
 * A server that answers as etcd's gateway would: by a function, or by script and then never.
 * Readiness is probed with success, unless another function answers.
 */
export async function fakeEtcd(
  t: TestContext,
  answer?: EtcdResponse,
  answerProbe: EtcdResponse = () => ok(),
) {
  // `asked` is without the probes of readiness and of who has refused a put.
  const [asked, probes]: [Asked[], Asked[]] = [[], []]
  const replies: FakeReply[] = []
  const serve = async (req: IncomingMessage, res: ServerResponse): Promise<void> => {
    const each = { path: req.url ?? '', body: await text(req), headers: req.headers }
    const isProbe = each.body.includes('request_delete_range') || each.body === CHECK
    const list = isProbe ? probes : asked
    list.push(each)
    const reply = await (isProbe ? answerProbe : (answer ?? (() => replies.shift())))(each)
    if (reply === undefined || reply === 'hang') return
    if (reply === 'cut') {
      res.writeHead(200, { 'Content-Length': 1000 }).write('{"header":', () => res.destroy())
      return
    }
    const [status, body] = reply
    if (reply === PUT) puts.set(t, (puts.get(t) ?? 0) + 1)
    const revision = String(Number(HEADER.revision) + (puts.get(t) ?? 0))
    const current = (name: string, value: unknown): unknown =>
      name === 'header' && value === HEADER ? { ...HEADER, revision } : value
    res.writeHead(status).end(typeof body === 'string' ? body : JSON.stringify(body, current))
  }
  const endpoint = await serving(t, (req, res) => {
    serve(req, res).catch(() => res.destroy())
  })
  /** Adds answers for the next requests. */
  const script = (...more: readonly FakeReply[]): void => void replies.push(...more)
  return { endpoint, asked, probes, script }
}
