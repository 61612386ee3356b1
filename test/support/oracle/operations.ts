/** What the oracle knows of the interface: its paths, and what each method does there. */
const PATHS = {
  '/plants': { GET: 'list', POST: 'create' },
} as const satisfies Readonly<Record<string, Readonly<Record<string, string>>>>

type Methods = (typeof PATHS)[keyof typeof PATHS]
/** What a client can ask for, besides OPTIONS. */
export type Kind = Methods[keyof Methods]

export const NEEDS_WRITE: Readonly<Record<Kind, boolean>> = { list: false, create: true }

interface Route {
  readonly path: string
  readonly pattern: RegExp
  readonly kinds: ReadonlyMap<string, Kind>
  /** Every method, as an Allow header names them. */
  readonly allow: string
}

export const ROUTES: readonly Route[] = Object.entries(PATHS).map(([path, methods]) => {
  const kinds = new Map<string, Kind>(Object.entries(methods))
  const get = kinds.get('GET')
  const all = [...kinds.keys()].flatMap((method) => (method === 'GET' ? ['GET', 'HEAD'] : [method]))
  if (get) kinds.set('HEAD', get)
  const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '([^/]+)')}$`)
  return { path, pattern, kinds, allow: [...all, 'OPTIONS'].join(', ') }
})

export function routeOf(target: string): Route | undefined {
  // RFC 9110 §4.2: without a host, or with user info, it is no URL of this service.
  const [path = ''] = target.replace(/^https?:\/\/[^/?#@]+/i, '').split('?')
  return ROUTES.find(({ pattern }) => pattern.test(path))
}

/** What a request asks for, if there is such an operation. */
export function kindOf(request: {
  readonly method: string
  readonly target: string
}): Kind | undefined {
  return routeOf(request.target)?.kinds.get(request.method)
}
